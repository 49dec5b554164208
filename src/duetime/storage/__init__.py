"""Where jobs live. One protocol, one package for each database."""
