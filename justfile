# The same commands as ./dev, for those who have just.

set positional-arguments

[private]
default:
    @./dev help

setup:
    @./dev setup

fix:
    @./dev fix

check:
    @./dev check

test *args:
    @./dev test "$@"

e2e *args:
    @./dev e2e "$@"

faults *args:
    @./dev faults "$@"

docs *args:
    @./dev docs "$@"

build:
    @./dev build

bench *args:
    @./dev bench "$@"

bench-full *args:
    @./dev bench --full "$@"

clients *args:
    @./dev clients "$@"

run *args:
    @./dev run "$@"

demo *args:
    @./dev demo "$@"
