"""What papers print: to compare with, never to certify or account by.

Nothing here is a `Guarantee` or a `PrivacyStatement`, no function here returns a
certificate, and the common code imports nothing from here.
"""
