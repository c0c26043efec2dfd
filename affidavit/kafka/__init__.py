"""What workers and the command line share about a Kafka cluster: its address, its topics, and how both are checked.

Needs the extra `kafka`. Nothing here is imported by the rest of the package unless a command asks for it.
"""
