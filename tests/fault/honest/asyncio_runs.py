# ---- completion
import asyncio
async def later(a, b):
    await asyncio.sleep(0)
    return a + b
def add(a, b):
    return asyncio.run(later(a, b))
