"""Users, access control lists and what they allow; the same decisions for Kafka and HTTP.

acl            resources, operations, patterns: Kafka's model
rules          what one principal may do, compiled for fast checks
authorizer     the view in force, super users, refusals
requirements   what each Kafka API and each HTTP route requires: one table
records, view  users and ACLs in the metadata store, and this process's copy of them
changes        create, change and delete users and ACLs
scram, plain   passwords; oauthbearer: tokens of an identity provider; certificates: subjects as principals
throttle       bounds on failed attempts; refusals: bounds on audit lines
"""
