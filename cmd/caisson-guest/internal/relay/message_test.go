package relay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// packQuery returns a resolver's query.
func packQuery(t testing.TB, name string, kind dnsmessage.Type, change func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 0x1234, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask answers a message as a host that knows example.com, and returns the name
// that it was asked for.
func ask(message []byte) (answer []byte, asked string) {
	q, ok := parseQuery(message)
	if !ok {
		return nil, ""
	}
	if q.name == "" || q.code != 0 {
		return q.respond(false, [4]byte{}), ""
	}
	return q.respond(q.name == "example.com", [4]byte{127, 96, 0, 1}), q.name
}

func TestAnswers(t *testing.T) {
	const none, notFound = dnsmessage.RCodeSuccess, dnsmessage.RCodeNameError
	for name, tt := range map[string]struct {
		name  string
		kind  dnsmessage.Type
		code  dnsmessage.RCode
		addr  bool
		asked string
	}{
		"address":        {"example.com.", dnsmessage.TypeA, none, true, "example.com"},
		"case is kept":   {"ExAmple.COM.", dnsmessage.TypeA, none, true, "example.com"},
		"IPv6":           {"example.com.", dnsmessage.TypeAAAA, none, false, "example.com"},
		"HTTPS":          {"example.com.", 65, none, false, "example.com"},
		"other name":     {"example.org.", dnsmessage.TypeA, notFound, false, "example.org"},
		"its IPv6":       {"example.org.", dnsmessage.TypeAAAA, notFound, false, "example.org"},
		"text":           {"example.com.", dnsmessage.TypeTXT, none, false, ""},
		"service":        {"_http._tcp.example.com.", dnsmessage.TypeSRV, none, false, ""},
		"reverse":        {"1.0.96.127.in-addr.arpa.", dnsmessage.TypePTR, none, false, ""},
		"all":            {"example.com.", dnsmessage.TypeALL, none, false, ""},
		"the root":       {".", dnsmessage.TypeA, notFound, false, ""},
		"space":          {"a b.com.", dnsmessage.TypeA, notFound, false, ""},
		"underscore":     {"_a.com.", dnsmessage.TypeA, notFound, false, "_a.com"},
		"not ASCII":      {"ä.com.", dnsmessage.TypeA, notFound, false, ""},
		"longest label":  {strings.Repeat("a", 63) + ".com.", dnsmessage.TypeA, notFound, false, strings.Repeat("a", 63) + ".com"},
		"longest name":   {strings.Repeat("a.", 126) + "b.", dnsmessage.TypeA, notFound, false, strings.Repeat("a.", 126) + "b"},
		"control letter": {"a\n.com.", dnsmessage.TypeA, notFound, false, ""},
	} {
		answer, asked := ask(packQuery(t, tt.name, tt.kind, nil))
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if asked != tt.asked || m.RCode != tt.code || (len(m.Answers) == 1) != tt.addr || m.ID != 0x1234 || !m.Response || !m.RecursionDesired || !m.RecursionAvailable {
			t.Errorf("%s: asked for %q: %+v", name, asked, m)
		}
		if len(m.Questions) != 1 || m.Questions[0].Name.String() != tt.name || m.Questions[0].Type != tt.kind {
			t.Errorf("%s: question %+v", name, m.Questions)
		}
		if tt.addr {
			a, ok := m.Answers[0].Body.(*dnsmessage.AResource)
			if !ok || netip.AddrFrom4(a.A) != netip.MustParseAddr("127.96.0.1") || m.Answers[0].Header.Name.String() != tt.name {
				t.Errorf("%s: answer %+v", name, m.Answers[0])
			}
		}
	}
}

// TestOptions checks that a resolver's additions to a question change nothing.
func TestOptions(t *testing.T) {
	query := packQuery(t, "example.com.", dnsmessage.TypeA, func(m *dnsmessage.Message) {
		opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
		opt.Header.Name = dnsmessage.MustNewName(".")
		if err := opt.Header.SetEDNS0(1232, dnsmessage.RCodeSuccess, false); err != nil {
			t.Fatal(err)
		}
		m.Additionals = append(m.Additionals, opt)
	})
	answer, asked := ask(query)
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil || asked != "example.com" || len(m.Answers) != 1 || len(m.Additionals) != 0 {
		t.Errorf("%v: asked for %q, %+v", err, asked, m)
	}
}

func TestBadQueries(t *testing.T) {
	good := packQuery(t, "example.com.", dnsmessage.TypeA, nil)
	with := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	header := func(at int, value uint16) []byte {
		return with(func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], value); return b })
	}
	const silent = -1
	for name, tt := range map[string]struct {
		message []byte
		code    int
	}{
		"empty":               {nil, silent},
		"half a header":       {good[:messageHeader-1], silent},
		"an answer":           {header(2, flagResponse), silent},
		"a notification":      {header(2, 4<<11), codeNotImpl},
		"no question":         {header(4, 0), codeFormat},
		"two questions":       {header(4, 2), codeFormat},
		"header alone":        {good[:messageHeader], codeFormat},
		"cut name":            {good[:messageHeader+5], codeFormat},
		"no type":             {good[:len(good)-4], codeFormat},
		"half a class":        {good[:len(good)-1], codeFormat},
		"pointer":             {with(func(b []byte) []byte { b[messageHeader] = 0xc0; return b }), codeFormat},
		"pointer to itself":   {append(good[:messageHeader:messageHeader], 0xc0, messageHeader, 0, 1, 0, 1), codeFormat},
		"extended label":      {with(func(b []byte) []byte { b[messageHeader] = 0x40; return b }), codeFormat},
		"too long":            {slicesConcat(good[:messageHeader], bytes.Repeat([]byte{1, 'a'}, 128), []byte{0, 0, 1, 0, 1}), codeFormat},
		"dot in a label":      {with(func(b []byte) []byte { b[messageHeader+2] = '.'; return b }), codeNotFound},
		"NUL in a label":      {with(func(b []byte) []byte { b[messageHeader+2] = 0; return b }), codeNotFound},
		"class of everything": {with(func(b []byte) []byte { b[len(b)-1] = 255; return b }), 0},
	} {
		answer, asked := ask(tt.message)
		switch {
		case asked != "":
			t.Errorf("%s: the host is asked for %q", name, asked)
		case tt.code == silent && answer != nil, tt.code != silent && answer == nil:
			t.Errorf("%s: answer %x", name, answer)
		case answer != nil && int(answer[3]&0xf) != tt.code:
			t.Errorf("%s: code %d, want %d", name, answer[3]&0xf, tt.code)
		}
	}
}

func slicesConcat(list ...[]byte) []byte { return bytes.Join(list, nil) }

// FuzzQuery checks that the host is only asked for names, and that resolvers
// can read the answer, which is to the question and never a refusal.
func FuzzQuery(f *testing.F) {
	seeds := [][]byte{
		packQuery(f, "example.com.", dnsmessage.TypeA, nil),
		packQuery(f, "a.b.c.d.example.org.", dnsmessage.TypeAAAA, nil),
		packQuery(f, ".", dnsmessage.TypeALL, nil),
		{0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 1, 0, 1},
	}
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		answer, asked := ask(message)
		if asked != "" && !wire.IsName(asked) {
			t.Errorf("the host is asked for %q", asked)
		}
		if answer == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil {
			if name, _, _ := parseName(message[messageHeader:]); strings.Contains(name, "\x00") {
				return // the parser refuses a label with a dot, which was asked for
			}
			t.Fatalf("the answer %x can't be read: %v", answer, err)
		}
		if m.RCode == dnsmessage.RCodeRefused || !m.Response || !bytes.Equal(answer[:2], message[:2]) {
			t.Errorf("the answer to %x is %+v", message, m.Header)
		}
		if len(m.Questions) > 0 && !bytes.HasPrefix(message[messageHeader:], answer[messageHeader:len(answer)-16*len(m.Answers)]) {
			t.Errorf("the answer to %x has another question: %x", message, answer)
		}
		if len(answer) > len(message)+16 {
			t.Errorf("an answer of %d bytes to %d", len(answer), len(message))
		}
	})
}
