"""The Kafka front end: unmodified Kafka clients on the same broker.

codec      Kafka's messages ⇄ bytes, pure
net        frames and connections
dispatch   frame → handler → answer
apis       one module per API
server     the listener
"""
