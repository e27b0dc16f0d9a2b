"""APIs of authentication, users and access control lists."""
