"""What every network front end shares: sockets, TLS, connections that keep a minimum pace, HTTP/1.1, tokens.

server       accepts connections and stops gracefully
connection   one client's connection: back-pressure, deadlines, the pace at which it takes answers
http1        HTTP/1.1 on such a connection, for the broker's routes and every process's status pages
tokens       bearer tokens for reading and writing
"""
