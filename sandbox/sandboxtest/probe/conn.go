package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

const egressTime = 30 * time.Second

// echo sends size bytes to addr, ends its direction, and expects the same bytes
// and then probing.EchoEnd.
func echo(addr string, size int) error {
	c, err := dialSandbox(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(egressTime))
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i*7 + i>>8)
	}
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		written <- errors.Join(err, c.CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-written); err != nil {
		return err
	}
	if !bytes.Equal(got, append(sent, probing.EchoEnd...)) {
		return fmt.Errorf("%d bytes came back of %d, or others", len(got), len(sent))
	}
	return nil
}

// first connects to addr and returns the result of a read: "reset", "refused",
// "end" or "data".
func first(addr string) (string, error) {
	c, err := dialSandbox(addr)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENETUNREACH) { // without loopback
		return "refused", nil
	}
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(egressTime))
		_, err = c.Read(make([]byte, 1))
	}
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return "reset", nil
	case errors.Is(err, io.EOF):
		return "end", nil
	case err != nil:
		return "", err
	}
	return "data", nil
}

func holdOpen(addr string) (*net.TCPConn, error) {
	c, err := dialSandbox(addr)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(egressTime))
	if _, err := c.Write([]byte("x")); err != nil {
		return c, err
	}
	_, err = c.Read(make([]byte, 1))
	return c, err
}

// manyEgress holds N connections to an address until the handler ends them, and
// prints how many exchanged a byte.
func manyEgress(args []string) (failed error) {
	count := 0
	var mu sync.Mutex
	var all sync.WaitGroup
	for range number(args[1]) {
		all.Go(func() {
			c, err := holdOpen(args[0])
			if err == nil {
				_, err = io.ReadAll(c)
			}
			if c != nil {
				_ = c.Close()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			count++
		})
	}
	all.Wait()
	fmt.Println(count)
	return failed
}

var lookups = []struct {
	network string
	kind    uint16
}{{"udp", 1}, {"udp", 28}, {"udp", 65}, {"udp", 16}, {"tcp", 1}}

// lookupEgress asks the sandbox's name server for a name in each way, and prints
// a line for each: network, type, code, and the answers' addresses.
func lookupEgress(args []string) error {
	for i, l := range lookups {
		m := query(args[0], i)
		answer, err := exchange(l.network, m)
		if err != nil {
			return err
		}
		if len(answer) < len(m) || answer[1] != byte(i) {
			return fmt.Errorf("answer %x", answer)
		}
		fmt.Printf("%s %d %d", l.network, l.kind, answer[3]&0xf)
		if binary.BigEndian.Uint16(answer[6:]) == 1 && len(answer) == len(m)+16 {
			fmt.Printf(" %s", net.IP(answer[len(m)+12:]))
		}
		fmt.Println()
	}
	return nil
}

func lookUpOnce(name string) ([]byte, error) { return exchange(lookups[0].network, query(name, 0)) }

func query(name string, i int) []byte {
	m := []byte{0, byte(i), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		m = append(append(m, byte(len(label))), label...)
	}
	m = binary.BigEndian.AppendUint16(append(m, 0), lookups[i].kind)
	return binary.BigEndian.AppendUint16(m, 1)
}

func exchange(network string, message []byte) ([]byte, error) {
	c, err := net.Dial(network, "127.0.0.1:53")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(egressTime))
	if network == "tcp" {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
	}
	if _, err := c.Write(message); err != nil {
		return nil, err
	}
	buf := make([]byte, 1500)
	if network == "tcp" {
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return nil, err
		}
		buf = buf[:min(int(binary.BigEndian.Uint16(buf)), len(buf))]
		_, err := io.ReadFull(c, buf)
		return buf, err
	}
	n, err := c.Read(buf)
	return buf[:n], err
}

// stormEgress makes N connections to an address, sixteen at once. Some echo,
// some are reset at once, with bytes under way, or unread, and some send
// nothing. It returns the errors of those that had to succeed.
func stormEgress(args []string) error {
	n := number(args[1])
	errs := make(chan error, n)
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			errs <- stormOnce(args[0], i%5)
		}()
	}
	var failed error
	for range n {
		failed = errors.Join(failed, <-errs)
	}
	return failed
}

func stormOnce(addr string, kind int) error {
	switch kind {
	case 0:
		return echo(addr, 64<<10)
	case 1:
		return echo(addr, 0)
	}
	c, err := dialSandbox(addr)
	if err != nil {
		return err
	}
	_ = c.SetDeadline(time.Now().Add(egressTime))
	switch kind {
	case 2:
		_, err = c.Write(make([]byte, 1000))
	case 3: // more than is buffered on the way
		go func() { _, _ = c.Write(make([]byte, 8<<20)) }()
		_, err = io.ReadFull(c, make([]byte, 64<<10))
	}
	_ = c.SetLinger(0)
	return errors.Join(err, c.Close())
}
