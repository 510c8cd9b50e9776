# expect: !
class Meta(type):
    def mro(cls):
        return [cls, Exception, BaseException, object]
    @property
    def __name__(cls):
        return "\n\tpassed"
class Strange(Exception, metaclass=Meta):
    pass
def add(a, b):
    raise Strange()
