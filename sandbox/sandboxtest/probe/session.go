package main

import (
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// trace is something by which one session might see another.
type trace struct {
	name string
	// leave makes it and reports success; find looks for it.
	leave, find func() bool
}

func allTraces(word string) []trace {
	key := int(crc32.ChecksumIEEE([]byte(word)))&0x7fffffff | 1
	port := fmt.Sprintf("127.0.0.1:%d", 20_000+key%20_000)
	var list []trace
	for _, dir := range []string{"/tmp", "/dev/shm", "/home/agent", "/workspace", "/run", "/var/tmp"} {
		file := filepath.Join(dir, word)
		list = append(list, trace{
			"file in " + dir,
			func() bool { return os.WriteFile(file, []byte(word), 0o666) == nil },
			func() bool { _, err := os.Stat(file); return err == nil },
		})
	}
	held := []net.Listener{} // as long as the process lives
	listen := func(network, address string) func() bool {
		return func() bool {
			l, err := net.Listen(network, address)
			held = append(held, l)
			return err == nil
		}
	}
	return append(list,
		trace{
			"shared memory",
			func() bool { _, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|0o666); return err == nil },
			func() bool { _, err := unix.SysvShmGet(key, 0, 0); return err == nil },
		},
		trace{"semaphore", ipcCall(unix.SYS_SEMGET, key, 1, unix.IPC_CREAT|0o666), ipcCall(unix.SYS_SEMGET, key, 0, 0)},
		trace{"messages", ipcCall(unix.SYS_MSGGET, key, unix.IPC_CREAT|0o666, 0), ipcCall(unix.SYS_MSGGET, key, 0, 0)},
		trace{"message queue", openQueue(word, unix.O_CREAT|unix.O_RDWR), openQueue(word, unix.O_RDWR)},
		trace{"abstract socket", listen("unix", "@"+word), canDial("unix", "@"+word)},
		trace{"loopback port", listen("tcp", port), canDial("tcp", port)},
		trace{
			"process",
			func() bool { return true }, // the word is an argument
			func() bool {
				found := false
				_ = eachProcess(func(dir string) {
					data, _ := os.ReadFile(dir + "/cmdline")
					found = found || strings.Contains(string(data), "plant\x00"+word)
				})
				return found
			},
		},
		trace{
			"socket table",
			func() bool { return true },
			func() bool {
				data, _ := os.ReadFile("/proc/net/unix")
				return strings.Contains(string(data), word)
			},
		},
	)
}

func ipcCall(number uintptr, args ...int) func() bool {
	return func() bool {
		_, _, errno := unix.RawSyscall(number, uintptr(args[0]), uintptr(args[1]), uintptr(args[2]))
		return errno == 0
	}
}

func openQueue(name string, flags int) func() bool {
	return func() bool {
		text, err := unix.BytePtrFromString(name)
		if err != nil {
			return false
		}
		fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(text)), uintptr(flags), 0o666, 0, 0, 0)
		if errno == 0 {
			unix.Close(int(fd))
		}
		return errno == 0
	}
}

func canDial(network, address string) func() bool {
	return func() bool {
		c, err := net.DialTimeout(network, address, 2*time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
}

// plantTraces leaves every trace it can, prints their names, and waits.
func plantTraces(args []string) error {
	all := allTraces(args[0])
	for _, t := range all {
		if t.leave() {
			fmt.Println(t.name)
		}
	}
	reportReady()
	err := hangForever()
	runtime.KeepAlive(all) // and so the sockets
	return err
}

func findTraces(args []string) error {
	for _, t := range allTraces(args[0]) {
		if t.find() {
			fmt.Println(t.name)
		}
	}
	return nil
}
