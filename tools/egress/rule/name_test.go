package rule

import (
	"net/netip"
	"testing"
)

func TestPolicyNames(t *testing.T) {
	p := &Policy{
		Allow: mustParse(t, "tls://a.test:8443", "tcp://*.wild.test:5432", "http://web.test/x/", "tcp://any.test:*", "tcp://out.test:1"),
		Deny:  mustParse(t, "tcp://no.wild.test:5432", "tcp://part.wild.test:22", "tls://gone.test", "http://path.test/x"),
	}
	for name, want := range map[string]bool{
		"a.test": true, "x.wild.test": true, "wild.test": false, "no.wild.test": false, "part.wild.test": true, "web.test": true, "any.test": true,
		"other.test": false, "x.a.test": false, "out.test": true,
	} {
		if got := p.AllowsName(name); got != want {
			t.Errorf("AllowsName(%s) = %v", name, got)
		}
	}
	within := *p
	within.Within = [][]Rule{mustParse(t, "tcp://any.test:22", "tls://out.test")}
	for name, want := range map[string]bool{"any.test": true, "a.test": false, "out.test": false} {
		if got := within.AllowsName(name); got != want {
			t.Errorf("within: AllowsName(%s) = %v", name, got)
		}
	}
	for name, want := range map[string]bool{"no.wild.test": true, "part.wild.test": true, "gone.test": true, "path.test": true, "a.test": false} {
		if got := p.DeniesName(name); got != want {
			t.Errorf("DeniesName(%s) = %v", name, got)
		}
	}
}

func TestAnswerRule(t *testing.T) {
	for port, want := range map[uint16]string{443: "tls://a.test", 80: "http://a.test/", 22: "tcp://a.test:22"} {
		r := AnswerRule("a.test", port)
		if r.String() != want {
			t.Errorf("port %d: %s, want %s", port, r, want)
		}
		p := (&Policy{}).WithAnswer(r)
		if !p.DecideHost("a.test", port).Allowed() || p.DecideHost("a.test", port+1).Allowed() || p.DecideHost("b.test", port).Allowed() {
			t.Errorf("port %d: the answer allows other than it", port)
		}
	}
	p := &Policy{Within: [][]Rule{{}}}
	if p.WithAnswer(AnswerRule("a.test", 22)).DecideHost("a.test", 22).Allowed() {
		t.Error("an answer allows more than the requirements")
	}
	if len(p.Allow) != 0 {
		t.Error("the policy was changed")
	}
}

func TestDialerCheckAddr(t *testing.T) {
	guard, err := NewGuard(map[string][]netip.Prefix{"db.test": {netip.MustParsePrefix("10.1.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	d := &Dialer{Guard: guard, Deny: mustParse(t, "tcp://93.184.216.34:*", "tcp://93.186.0.0/16:*", "http://93.185.0.1/x/")}
	for _, tt := range []struct {
		host, addr string
		publicOnly bool
		ok         bool
	}{
		{"db.test", "10.1.2.3", false, true},
		{"db.test", "10.1.2.3", true, false},
		{"other.test", "10.1.2.3", false, false},
		{"other.test", "93.184.216.35", false, true},
		{"other.test", "93.184.216.34", false, false},
		{"other.test", "93.186.1.1", false, false},
		{"other.test", "93.185.0.1", false, true}, // a path is denied
	} {
		d.PublicOnly = tt.publicOnly
		if err := d.CheckAddr(tt.host, 80, netip.MustParseAddr(tt.addr)); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	if d.CheckLiteral("10.9.9.9", 80) == nil || d.CheckLiteral("a.test", 80) != nil {
		t.Error("literals")
	}
}

func TestCanonicalHostRefusesInvalidUTF8(t *testing.T) {
	if host, err := CanonicalHost("\x80.test"); err == nil {
		t.Errorf("canonical: %q", host)
	}
}
