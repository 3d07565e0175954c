"""The configuration reference (docs/configuration*.md): every key of `config/schema`, with its words in two languages.

Keys of classes, optimizers and schedules come from their signatures.
"""
