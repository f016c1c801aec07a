"""The JobManager's ports, implemented twice: with threads and sockets, and with queues and a seed."""
