"""Decides who may do what: keys, authorization rules, tokens, and the limits of clients without a token.

May import the broker's model, storage and operations; never amqp, http or net.
"""
