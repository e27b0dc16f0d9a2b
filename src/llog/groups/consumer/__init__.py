"""The consumer protocol of KIP-848: ConsumerGroupHeartbeat, server-side assignors."""
