package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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

func firstEgress(args []string) error {
	for _, addr := range args {
		text, err := first(addr)
		if err != nil {
			return err
		}
		fmt.Println(text)
	}
	return nil
}

func holdEgress(args []string) error {
	c, err := holdOpen(args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	return sleepMarked(nil)
}

// bindEgress prints the addresses at which it can listen, also by IPv6 and with
// the options that let two share one.
func bindEgress(args []string) error {
	for _, addr := range args {
		for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
			at, port := addr, addr[strings.LastIndexByte(addr, ':'):]
			switch {
			case strings.HasPrefix(network, "udp") && port != ":53":
				continue
			case strings.HasSuffix(network, "6") && strings.HasPrefix(addr, "0.0.0.0:"):
				at = "[::]" + port
			case strings.HasSuffix(network, "6"):
				at = "[::ffff:" + strings.TrimSuffix(addr, port) + "]" + port
			}
			for _, option := range []int{0, unix.SO_REUSEADDR, unix.SO_REUSEPORT, unix.SO_BINDTODEVICE} {
				if canBind(network, at, option) {
					fmt.Println(addr, network, option)
				}
			}
		}
	}
	return nil
}

func canBind(network, addr string, option int) bool {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return false
	}
	family, kind := unix.AF_INET6, unix.SOCK_STREAM
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
	if strings.HasSuffix(network, "4") {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	if strings.HasPrefix(network, "udp") {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	switch option {
	case 0:
	case unix.SO_BINDTODEVICE:
		err = unix.BindToDevice(fd, "lo")
	default:
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1)
	}
	if family == unix.AF_INET6 && err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = unix.Bind(fd, to)
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 1)
	}
	return err == nil
}

// benchEgress measures one thing and prints nanoseconds: "down" and "up" move n
// bytes, "connect" and "name" take the median of n round trips. "hold" and
// "churn" run until SIGTERM: n connections that wait, or n at once that end
// after a byte.
func benchEgress(args []string) error {
	took, err := measureEgress(args[0], args[1], number(args[2]))
	if err == nil {
		fmt.Println(took.Nanoseconds())
	}
	return err
}

func measureEgress(what, addr string, n int) (time.Duration, error) {
	switch what {
	case "name":
		return median(n, func() error { _, err := lookUpOnce(addr); return err })
	case "connect":
		return median(n, func() error {
			c, err := openEgress(addr, 'e')
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = io.ReadFull(c, make([]byte, 1))
			return err
		})
	case "hold", "churn":
		for i := range n {
			go repeatEgress(what, addr, i)
		}
		return 0, sleepMarked(nil)
	}
	c, err := openEgress(addr, what[0])
	if err != nil {
		return 0, err
	}
	defer c.Close()
	began := time.Now()
	if what[0] == 'd' {
		_, err = io.CopyN(io.Discard, struct{ io.Reader }{c}, int64(n))
		return time.Since(began), err
	}
	piece := make([]byte, 128<<10)
	for left := n; left > 0 && err == nil; left -= len(piece) {
		_, err = c.Write(piece)
	}
	_ = c.CloseWrite()
	_, endErr := c.Read(piece) // the other end has read everything
	if err == nil && !errors.Is(endErr, io.EOF) {
		err = endErr
	}
	return time.Since(began), err
}

// repeatEgress makes one connection after another. With "hold", one in fifty
// reads nothing and one in fifty reads slowly, both for ever; the others last a
// second. Of the connections that end, half are half-closed and read to the end,
// and half are reset.
func repeatEgress(what, addr string, i int) {
	if what == "hold" && i%50 < 2 {
		c, err := openEgress(addr, 'd')
		for err == nil && i%50 == 1 {
			time.Sleep(20 * time.Millisecond)
			_, err = c.Read(make([]byte, 4<<10))
		}
		if err == nil {
			_ = hangForever()
		}
		return
	}
	for {
		c, err := openEgress(addr, 'e')
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if what == "hold" {
			time.Sleep(time.Second)
		}
		if err != nil {
			continue
		}
		if i%2 == 0 {
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		} else {
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
}

// openEgress connects and sends a byte that says what to do. An address behind
// a proxy is PROXY>HOST:PORT.
func openEgress(addr string, word byte) (*net.TCPConn, error) {
	proxy, target, tunnel := strings.Cut(addr, ">")
	c, err := dialSandbox(proxy)
	if err != nil {
		return nil, err
	}
	if tunnel {
		err = connectTunnel(c, target)
	}
	if err == nil {
		_, err = c.Write([]byte{word})
	}
	return c, err
}

// connectTunnel asks a proxy for a tunnel whose other end waits for the first
// byte.
func connectTunnel(c net.Conn, target string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		return err
	}
	var answer []byte
	for !strings.HasSuffix(string(answer), "\r\n\r\n") {
		piece := make([]byte, 1024)
		n, err := c.Read(piece)
		if err != nil {
			return err
		}
		answer = append(answer, piece[:n]...)
	}
	if !strings.Contains(string(answer[:min(len(answer), 16)]), " 200 ") {
		return fmt.Errorf("the proxy answered %q", answer)
	}
	return nil
}

func median(n int, f func() error) (time.Duration, error) {
	var times []time.Duration
	for range n {
		began := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
