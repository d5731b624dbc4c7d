package egresstest

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Answer is the name server's answer to one query for a name.
type Answer struct {
	Addrs []string
	CNAME string
	RCode dnsmessage.RCode
}

// NameServer is a name server whose answers may change with every query. It counts
// queries for AAAA and A separately, so that both of one lookup get the same
// answer.
type NameServer struct {
	mu      sync.Mutex
	answers map[string][]Answer // the last one stays
	asked   map[string]int
}

// StartNameServer starts a name server on UDP and TCP. Answers of 500 addresses need TCP.
func StartNameServer(t *testing.T, answers map[string][]Answer) *NameServer {
	t.Helper()
	n := &NameServer{answers: answers, asked: map[string]int{}}
	udp, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", nameServerAddr+":53")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", nameServerAddr+":53")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			size, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := n.answerQuery(buf[:size], 512); reply != nil {
				_, _ = udp.WriteTo(reply, from)
			}
		}
	})
	wg.Go(func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			if size, err := conn.Read(buf); err == nil && size > 2 {
				reply := n.answerQuery(buf[2:size], 65535)
				_, _ = conn.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...))
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = udp.Close()
		_ = tcp.Close()
		wg.Wait()
	})
	return n
}

func (n *NameServer) answerQuery(query []byte, maxSize int) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.ToLower(q.Name.String())
	n.mu.Lock()
	key := name + q.Type.String()
	list := n.answers[strings.TrimSuffix(name, ".")]
	at := min(n.asked[key], len(list)-1)
	if maxSize == 512 { // a query over TCP is the same one again
		n.asked[key]++
	}
	n.mu.Unlock()
	m.Response = true
	m.Authoritative = true
	m.RecursionAvailable = true
	m.Additionals = nil
	if at < 0 {
		m.RCode = dnsmessage.RCodeNameError
	} else {
		m.RCode = list[at].RCode
		m.Answers = answerRecords(q, list[at])
	}
	out, err := m.Pack()
	if err == nil && len(out) > maxSize {
		m.Truncated, m.Answers = true, nil
		out, err = m.Pack()
	}
	if err != nil {
		return nil
	}
	return out
}

func answerRecords(q dnsmessage.Question, a Answer) []dnsmessage.Resource {
	var out []dnsmessage.Resource
	header := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
	if a.CNAME != "" {
		header.Type = dnsmessage.TypeCNAME
		out = append(out, dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(a.CNAME)}})
		header.Name = dnsmessage.MustNewName(a.CNAME)
	}
	header.Type = q.Type
	for _, s := range a.Addrs {
		addr := netip.MustParseAddr(s)
		switch {
		case q.Type == dnsmessage.TypeA && addr.Is4():
			out = append(out, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case q.Type == dnsmessage.TypeAAAA && addr.Is6():
			out = append(out, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	return out
}

// Queries returns the number of queries for all names so far.
func (n *NameServer) Queries() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := 0
	for _, asked := range n.asked {
		sum += asked
	}
	return sum
}
