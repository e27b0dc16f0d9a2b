"""One module per Kafka API. Each declares `HANDLER`; `llog.kafka.apis.handlers` finds them all."""
