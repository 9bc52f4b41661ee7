#!/bin/sh
# A repository to try the plan on; run it where you want the folder `shop` to be.
set -eu
git init -q -b main shop
cd shop
cat > shop.py <<'PYTHON'
def total(items):
    return sum(item["price"] for item in items)
PYTHON
cat > test_shop.py <<'PYTHON'
from shop import total

assert total([{"price": 2, "quantity": 3}, {"price": 1, "quantity": 1}]) == 7
assert total([]) == 0
PYTHON
git add shop.py test_shop.py
git -c user.name=Example -c user.email=example@example.org commit -q -m "Shop"
echo "made $(pwd)"
