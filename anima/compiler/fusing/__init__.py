"""From jaxprs to groups: what is folded into what, what goes to memory, and whose memory it takes."""
