package probing

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
)

// Dial connects to an address of the sandbox.
type Dial func(addr string) (*net.TCPConn, error)

// egressTime bounds the wait for one connection.
const egressTime = 30 * time.Second

// EchoEnd is sent by the other end of Echo when it has read all.
const EchoEnd = "end"

// Echo sends size bytes to addr, ends its direction, and reads until the other
// end does: the same bytes must come back, and then EchoEnd.
func Echo(dial Dial, addr string, size int) error {
	c, err := dial(addr)
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
	if !bytes.Equal(got, append(sent, EchoEnd...)) {
		return fmt.Errorf("%d bytes came back of %d, or others", len(got), len(sent))
	}
	return nil
}

// First connects to addr and returns what a first read results in: "reset",
// "refused", "end" or "data".
func First(dial Dial, addr string) (string, error) {
	c, err := dial(addr)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENETUNREACH) { // without a loopback
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

// Hold connects to addr, exchanges a byte and returns the connection.
func Hold(dial Dial, addr string) (*net.TCPConn, error) {
	c, err := dial(addr)
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

// Many holds n connections to addr, each until the handler has ended it, and
// returns how many exchanged a byte.
func Many(dial Dial, addr string, n int) (count int, failed error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c, err := Hold(dial, addr)
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
	return count, failed
}

// Lookups are the questions of Lookup, as network and type.
var Lookups = []struct {
	Network string
	Type    uint16
}{{"udp", 1}, {"udp", 28}, {"udp", 65}, {"udp", 16}, {"tcp", 1}}

// Lookup asks the name server of the sandbox for a name, in each way, and returns
// a line for each: network, type, code, and the answers' addresses.
func Lookup(name string) (string, error) {
	var text strings.Builder
	for i, l := range Lookups {
		m := query(name, i)
		answer, err := exchange(l.Network, m)
		if err != nil {
			return "", err
		}
		if len(answer) < len(m) || answer[1] != byte(i) {
			return "", fmt.Errorf("answer %x", answer)
		}
		fmt.Fprintf(&text, "%s %d %d", l.Network, l.Type, answer[3]&0xf)
		if binary.BigEndian.Uint16(answer[6:]) == 1 && len(answer) == len(m)+16 {
			fmt.Fprintf(&text, " %s", net.IP(answer[len(m)+12:]))
		}
		text.WriteString("\n")
	}
	return text.String(), nil
}

// LookupOne asks once for the address of a name.
func LookupOne(name string) ([]byte, error) { return exchange(Lookups[0].Network, query(name, 0)) }

// query returns the question i of Lookups.
func query(name string, i int) []byte {
	m := []byte{0, byte(i), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		m = append(append(m, byte(len(label))), label...)
	}
	m = binary.BigEndian.AppendUint16(append(m, 0), Lookups[i].Type)
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

// Storm makes n connections to addr, sixteen at once: some echo, some are reset
// at once, with bytes under way, or unread, and some send nothing. It returns an
// error for one that had to succeed.
func Storm(dial Dial, addr string, n int) error {
	errs := make(chan error, n)
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			errs <- stormOnce(dial, addr, i%5)
		}()
	}
	var failed error
	for range n {
		failed = errors.Join(failed, <-errs)
	}
	return failed
}

func stormOnce(dial Dial, addr string, kind int) error {
	switch kind {
	case 0:
		return Echo(dial, addr, 64<<10)
	case 1:
		return Echo(dial, addr, 0)
	}
	c, err := dial(addr)
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
