//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

// dialSandbox connects to an address, or to the proxy of this command.
func dialSandbox(addr string) (*net.TCPConn, error) {
	if addr == "proxy" {
		addr = strings.TrimPrefix(os.Getenv("HTTP_PROXY"), "http://")
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// echoEgress sends bytes to an address, which must come back.
func echoEgress(args []string) error {
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	return probing.Echo(dialSandbox, args[0], size)
}

// firstEgress prints what a first read of a connection results in.
func firstEgress(args []string) error {
	for _, addr := range args {
		text, err := probing.First(dialSandbox, addr)
		if err != nil {
			return err
		}
		fmt.Println(text)
	}
	return nil
}

// holdEgress holds a connection until SIGTERM.
func holdEgress(args []string) error {
	c, err := probing.Hold(dialSandbox, args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	return sleepMarked(nil)
}

// manyEgress opens many connections at once.
func manyEgress(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	count, err := probing.Many(dialSandbox, args[0], n)
	fmt.Println(count)
	return err
}

func lookupEgress(args []string) error {
	text, err := probing.Lookup(args[0])
	fmt.Print(text)
	return err
}

// bindEgress prints the addresses of the arguments at which it can listen, with
// and without the options by which two may share one.
func bindEgress(args []string) error {
	for _, addr := range args {
		for _, option := range []int{0, unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
			config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
				_ = c.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
					if option != 0 {
						err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, 1)
					}
				})
				return err
			}}
			if l, err := config.Listen(context.Background(), "tcp4", addr); err == nil {
				_ = l.Close()
				fmt.Println(addr, option)
			}
		}
	}
	return nil
}
