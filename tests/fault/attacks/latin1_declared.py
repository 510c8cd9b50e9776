# -*- coding: latin-1 -*-
# expect: wrong
def add(a, b):
    return 'ÿþÀ'
