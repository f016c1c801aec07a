"""The two sides of the JobManager's ports: threads and sockets, or queues and a seed."""
