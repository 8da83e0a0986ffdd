"""What both engines implement and use: the protocol of an engine, results, doors to other libraries, counters."""
