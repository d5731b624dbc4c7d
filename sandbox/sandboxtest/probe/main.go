// Command probe is a static program that the conformance suite runs inside a
// sandbox, as an ordinary command on any root filesystem. Each verb does one
// small thing and reports the result.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

var verbs = map[string]func(args []string) error{
	"exit":           exitWith,
	"raise":          raiseSignal,
	"streams":        printStreams,
	"bytes":          allBytes,
	"cat":            func([]string) error { _, err := io.Copy(os.Stdout, os.Stdin); return err },
	"env":            func([]string) error { fmt.Print(strings.Join(os.Environ(), "\x00")); return nil },
	"cwd":            printWorkingDir,
	"flood":          floodOutput,
	"sleep":          sleepMarked,
	"term-exit":      termExit,
	"term-leave":     termLeave,
	"ignore-term":    ignoreTerm,
	"daemons":        startDaemons,
	"daemon":         runDaemon,
	"hold-stdout":    holdStdout,
	"orphans":        leaveOrphans,
	"zombies":        leaveZombies,
	"ps":             countProcesses,
	"fork-bomb":      forkBomb,
	"hog":            hogMemory,
	"fill":           fillFile,
	"open-files":     openFiles,
	"mkdir":          func(a []string) error { return os.MkdirAll(a[0], 0o755) },
	"symlink":        makeSymlink,
	"touch":          func(a []string) error { return os.WriteFile(a[0], []byte("x"), 0o644) },
	"read":           printFile,
	"stat":           func(a []string) error { _, err := os.Stat(a[0]); return err },
	"absent":         expectAbsent,
	"facts":          printFacts,
	"syscalls":       printSyscalls,
	"attempt":        runAttempt,
	"reexec":         reexecSelf,
	"args":           func(a []string) error { fmt.Print(strings.Join(a, "\x00")); return nil },
	"drip":           dripBytes,
	"endless":        writeEndlessly,
	"close":          closeStreams,
	"busy":           keepBusy,
	"spin":           spinOnEOF,
	"stop-all":       stopAll,
	"storm":          forkStorm,
	"fork-count":     forkCount,
	"hold":           holdFile,
	"unhold":         removeHeld,
	"processors":     printProcessors,
	"fill-files":     fillFiles,
	"find-writable":  findWritable,
	"kernel-files":   kernelFiles,
	"overwrite":      printOverwritable,
	"terminal":       printTerminal,
	"on-terminal":    onTerminal,
	"type-inside":    typeInside,
	"flood-terminal": floodTerminal,
	"namespaces":     printNamespaces,
	"rlimits":        printRlimits,
	"connect":        printConnectable,
	"plant":          plantTraces,
	"find":           findTraces,
	"replace":        printReplaceable,
	"attack-guest":   attackGuest,
	"dial":           dialAddresses,
	"grep-environ":   grepEnviron,
	"grep-files":     grepFiles,
	"exist":          printReadable,
	"writable":       printWritable,
	"root-works":     rootWorks,
	"chown-all":      chownAll,
	"evade":          evade,
	"attack-threads": attackThreads,
	"set-id":         setID,
	"scar":           scarTree,
	"scars":          printTree,
	"swap-socket":    swapSocket,
	"take":           takeFile,
	"guard":          guardSecret,
	"reach":          reachOther,
	"serve":          serveLate,
	"request":        requestAnswer,
	"egress-echo":    func(a []string) error { return echo(a[0], number(a[1])) },
	"egress-first":   firstEgress,
	"egress-hold":    holdEgress,
	"egress-many":    manyEgress,
	"egress-lookup":  lookupEgress,
	"egress-bind":    bindEgress,
	"egress-bench":   benchEgress,
	"egress-storm":   stormEgress,
}

func main() {
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "probe: unknown verb")
		os.Exit(2)
	}
	if err := verbs[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(2)
	}
	return n
}

func exitWith(args []string) error {
	os.Exit(number(args[0]))
	return nil
}

// raiseSignal ends the process by a signal's default action. It first removes
// the runtime's handlers.
func raiseSignal(args []string) error {
	n := number(args[0])
	var action [4]uint64 // struct sigaction: SIG_DFL, no flags
	if _, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); errno != 0 && n != int(syscall.SIGKILL) {
		return errno
	}
	if err := syscall.Kill(os.Getpid(), syscall.Signal(n)); err != nil {
		return err
	}
	return hangForever()
}

func printStreams([]string) error {
	for i := range 3 {
		fmt.Fprintf(os.Stdout, "o%d", i+1)
		fmt.Fprintf(os.Stderr, "e%d", i+1)
	}
	return nil
}

func allBytes([]string) error {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	_, err := os.Stdout.Write(b)
	return err
}

func printWorkingDir([]string) error {
	// The kernel's answer, not $PWD.
	dir, err := os.Readlink("/proc/self/cwd")
	fmt.Print(dir)
	return err
}

func floodOutput(args []string) error {
	out := os.Stdout
	if args[0] == "stderr" {
		out = os.Stderr
	}
	n := int64(number(args[1]))
	// Copy in large pieces; io.CopyN would use small ones.
	buf, src := make([]byte, 256<<10), &probing.Pattern{}
	for n > 0 {
		piece := buf[:min(int64(len(buf)), n)]
		_, _ = src.Read(piece)
		if _, err := out.Write(piece); err != nil {
			return err
		}
		n -= int64(len(piece))
	}
	return nil
}

func makeSymlink(args []string) error {
	err := os.Symlink(args[0], args[1])
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

func printFile(args []string) error {
	data, err := os.ReadFile(args[0])
	os.Stdout.Write(data)
	return err
}

func expectAbsent(args []string) error {
	if _, err := os.Lstat(args[0]); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is there (%w)", args[0], err)
	}
	return nil
}
