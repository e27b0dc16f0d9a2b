"""Kafka's frames on connections.

frames       bytes of a socket ⇄ frames, each in memory of its own
connection   one client: requests in order, answers in the same order, bounded in number and memory
"""
