"""The classes of Kafka's messages, one module per API. Written by `make kafka-schemas`."""
