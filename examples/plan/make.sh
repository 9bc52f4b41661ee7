#!/bin/sh
# A repository to try the plan on; run it where you want the folder `site` to be.
set -eu
git init -q -b main site
cd site
echo "Ada" > people.txt
git add people.txt
git -c user.name=Example -c user.email=example@example.org commit -q -m "People"
echo "made $(pwd)"
