"""Workers, which validate in pairs for the servers.

With them a server uses more than one core, or more than one machine.
"""
