"""What a cluster costs: a pure model of objects, index keys, requests and dollars, its comparison with Kafka replicated
across zones, and the same figures read from running processes."""
