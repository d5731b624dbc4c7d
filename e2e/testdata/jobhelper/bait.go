package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bait is what attackers look for: a process of the job and its files, which lie
// beside the workspace.
type bait struct {
	Dir, Workspace string
	// Name is the abstract socket's. Secret is in Dir/secret, the process's
	// environment and memory, and what each socket and FIFO answers.
	Name, Secret  string
	PID, Port, FD int
	Address       uint64
}

// secretText is where PTRACE_PEEKDATA and process_vm_readv find the secret.
var secretText []byte

// layBait is the process: DIR WORKSPACE NAME SECRET. It prints a bait, and a line
// for each SIGUSR1.
func layBait(args []string) error {
	b := bait{Dir: args[0], Workspace: args[1], Name: args[2], Secret: args[3], PID: os.Getpid()}
	secretText = []byte(b.Secret)
	b.Address = uint64(uintptr(unsafe.Pointer(&secretText[0])))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	held, err := b.layFiles()
	if err != nil {
		return err
	}
	defer held.Close()
	b.FD = int(held.Fd())
	for _, l := range []struct{ network, address string }{
		{"unix", filepath.Join(b.Dir, "socket")}, {"unix", filepath.Join(b.Workspace, "socket")}, {"unix", "@" + b.Name}, {"tcp", "127.0.0.1:0"},
	} {
		listener, err := net.Listen(l.network, l.address)
		if err != nil {
			return err
		}
		if l.network == "tcp" {
			b.Port = listener.Addr().(*net.TCPAddr).Port
		}
		go b.tell(listener)
	}
	fifo, err := os.OpenFile(filepath.Join(b.Workspace, "fifo"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	go func() {
		for err == nil {
			_, err = io.WriteString(fifo, b.Secret+"\n") // blocks when the FIFO is full
		}
	}()
	// Yama lets only ancestors trace a process that doesn't ask for more.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0)
	if err := json.NewEncoder(os.Stdout).Encode(b); err != nil {
		return err
	}
	for range signals {
		fmt.Println("signalled")
	}
	return nil
}

// layFiles makes the files beside the workspace, and what leads to them in it.
func (b *bait) layFiles() (held *os.File, err error) {
	secret := filepath.Join(b.Dir, "secret")
	relative, err := filepath.Rel(b.Workspace, b.Dir)
	if err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(b.Workspace, name) }
	err = errors.Join(os.Chdir(b.Dir), os.WriteFile(secret, []byte(b.Secret), 0o600), os.WriteFile(filepath.Join(b.Dir, "victim"), nil, 0o600),
		os.Mkdir(in("swapped"), 0o755), os.WriteFile(in("swapped/secret"), []byte("harmless"), 0o600),
		os.Symlink(b.Dir, in("swapping")), os.Symlink(b.Dir, in("planted-directory")),
		os.Symlink(secret, in("planted-absolute")), os.Symlink(filepath.Join(relative, "secret"), in("planted-relative")),
		os.Symlink("planted-relative", in("planted-chain")), os.Symlink("/proc/self/root"+secret, in("planted-root")),
		os.Symlink(fmt.Sprintf("/proc/%d/environ", os.Getpid()), in("planted-environ")), unix.Mkfifo(in("fifo"), 0o600))
	if err != nil {
		return nil, err
	}
	_ = unix.Setxattr(secret, "user.secret", []byte(b.Secret), 0) // not every file system has them
	return os.Open(secret)
}

// tell tells the secret to all who connect.
func (b *bait) tell(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, b.Secret)
		_ = c.Close()
	}
}

// exchangeNames exchanges two names for a time: NAME NAME DURATION. In the end
// they are what they were.
func exchangeNames(args []string) error {
	length, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for n, end := 0, time.Now().Add(length); time.Now().Before(end) || n%2 == 1; n++ {
		if err := unix.Renameat2(unix.AT_FDCWD, args[0], unix.AT_FDCWD, args[1], unix.RENAME_EXCHANGE); err != nil {
			return err
		}
	}
	return nil
}
