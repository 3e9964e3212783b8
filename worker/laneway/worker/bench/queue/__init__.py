"""How many jobs a second go from submit through pull to settle, beside other queues on the same server."""
