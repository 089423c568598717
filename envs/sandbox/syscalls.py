"""The numbers of the system calls that the jail makes or lets through. Jail side: standard library only.

From 424 on (Linux 5.1) every machine has the same numbers; below, each has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["AARCH64", "X86_64"]

# Name, number on x86-64, number on aarch64; "-" where the machine never had the call.
_NUMBERS = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, lseek 8 62, close 3 57,
close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, fcntl 72 25, ioctl 16 29,
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, fstat 5 80, fstatfs 138 44, ftruncate 77 46,
fsync 74 82, fdatasync 75 83, msync 26 227, getdents64 217 61, getcwd 79 17, fchdir 81 50, umask 95 166,
open 2 -, openat 257 56, creat 85 -, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35,
rename 82 -, renameat 264 38, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -,
faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, statfs 137 43, chdir 80 49,
mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, brk 12 214, madvise 28 233, futex 202 98,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132, pause 34 -, restart_syscall 219 128,
kill 62 129, tkill 200 130, tgkill 234 131, nanosleep 35 101, clock_nanosleep 230 115,
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153,
getrusage 98 165, getrlimit 97 163, prlimit64 302 261, getpid 39 172, gettid 186 178, getppid 110 173,
getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158, getresuid 118 148,
getresgid 120 150, getpgrp 111 -, getpgid 121 155, getsid 124 156, uname 63 160, sysinfo 99 179,
getcpu 309 168, getrandom 318 278, sched_yield 24 124, sched_getaffinity 204 123, prctl 157 167, exit 60 93,
exit_group 231 94, capset 126 91, seccomp 317 277, unshare 272 97, setns 308 268, mount 165 40,
umount2 166 39, pivot_root 155 41, mount_setattr 442 442, landlock_create_ruleset 444 444,
landlock_add_rule 445 445, landlock_restrict_self 446 446
"""


def _table(column: int) -> Mapping[str, int]:
    rows = (row.split() for row in _NUMBERS.split(","))
    return MappingProxyType({row[0]: int(row[column]) for row in rows if row[column] != "-"})


X86_64 = _table(1)
AARCH64 = _table(2)
