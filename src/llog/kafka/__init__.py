"""The Kafka front end: unmodified Kafka clients on the same broker. So far only its codec."""
