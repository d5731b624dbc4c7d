package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// reachProcesses tries to read and to trace processes, and prints for each number
// the attempts with "reached" or the error.
func reachProcesses(args []string) error {
	found := map[string]map[string]string{}
	for _, arg := range args {
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		found[arg] = map[string]string{}
		for _, a := range processReads(pid) {
			found[arg][a.name] = outcomeOf(a.try)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func processReads(pid int) []attempt {
	at := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	var list []attempt
	for _, name := range []string{"environ", "maps", "auxv"} {
		list = append(list, attempt{name, func() error { _, err := os.ReadFile(at(name)); return err }})
	}
	for _, name := range []string{"root", "cwd", "exe"} {
		list = append(list, attempt{name, func() error { _, err := os.Readlink(at(name)); return err }})
	}
	return append(list,
		attempt{"mem", func() error {
			f, err := os.OpenFile(at("mem"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return f.Close()
		}},
		attempt{"fd", func() error { _, err := os.Readlink(at("fd/0")); return err }},
		attempt{"descriptor 0", func() error {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			got, err := unix.PidfdGetfd(fd, 0, 0)
			if err != nil {
				return err
			}
			return unix.Close(got)
		}},
		attempt{"process_vm_readv", func() error {
			// Where a program that is linked statically begins.
			text := make([]byte, 8)
			_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &text[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
			if errors.Is(err, unix.EFAULT) {
				return nil // it may read, and nothing is there
			}
			return err
		}},
		attempt{"trace", func() error { return unix.PtraceSeize(pid) }}, // until this thread ends
	)
}
