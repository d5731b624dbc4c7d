package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools/egress/egresstest"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// ownAddr is a public address of the machine itself.
const ownAddr = "93.184.217.77"

// TestPublicNetwork runs attacks on a server in a network with public addresses.
func TestPublicNetwork(t *testing.T) {
	if !egresstest.InNamespace() {
		egresstest.Run(t, 6)
		return
	}
	t.Run("same decision by all ways", namespaceSameDecision)
	t.Run("answers", namespaceAnswers)
	t.Run("own addresses", namespaceOwnAddresses)
	t.Run("private by name", namespacePrivate)
	t.Run("rebinding", namespaceRebinding)
	t.Run("lookups", namespaceLookups)
}

// network is the servers of the namespace: canaries at public and other addresses,
// on port 80.
type network struct {
	t        *testing.T
	public   *canary
	canaries []*canary
	names    *egresstest.NameServer
}

type answer = egresstest.Answer

func newNetwork(t *testing.T, answers map[string][]answer) *network {
	t.Helper()
	n := &network{t: t, names: egresstest.StartNameServer(t, answers)}
	n.public = newCanary(t, net.JoinHostPort(egresstest.PublicAddr, "80"))
	for _, addr := range egresstest.CanaryAddrs {
		n.canaries = append(n.canaries, newCanary(t, net.JoinHostPort(addr, "80")))
	}
	return n
}

// takeHits returns the number of connections to canaries that must not be reached,
// and resets it.
func (n *network) takeHits() int64 {
	var sum int64
	for _, c := range n.canaries {
		sum += c.hits.Swap(0)
	}
	return sum
}

func (n *network) requireUntouched(what string) {
	n.t.Helper()
	if hits := n.takeHits(); hits != 0 {
		n.t.Errorf("%s: %d connections to canaries", what, hits)
	}
}

// namespaceSameDecision is attacks 2, 3 and 4: sixty targets have one decision by
// all ways in.
func namespaceSameDecision(t *testing.T) {
	n := newNetwork(t, map[string][]answer{
		"good.test": {{Addrs: []string{egresstest.PublicAddr}}}, "other.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"a.wild.test": {{Addrs: []string{egresstest.PublicAddr}}}, "wild.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"denied.wild.test": {{Addrs: []string{egresstest.PublicAddr}}}, "tls.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"inner.test": {{Addrs: []string{"10.0.0.5"}}}, "xn--bcher-kva.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"web.test": {{Addrs: []string{egresstest.PublicAddr}}},
	})
	f := newFixture(t, nil, "tcp://good.test:80", "tcp://*.wild.test:80", "-tcp://denied.wild.test:*", "tls://tls.test:80", "tcp://inner.test:80",
		"http://web.test/", "tcp://bücher.test:80", "tcp://127.0.0.1:80", "tcp://10.0.0.0/8:*", "tcp://[::1]:80")
	type target struct {
		host string
		port int
		want string
	}
	targets := []target{
		{"good.test", 80, ""},
		{"GOOD.test", 80, ""},
		{"good.test.", 80, ""},
		{"web.test", 80, ""},
		{"a.wild.test", 80, ""},
		{"A.WILD.TEST", 80, ""},
		{"xn--bcher-kva.test", 80, ""},
		{"good.test", 81, "not_allowed"},
		{"good.test", 25, "not_allowed"},
		{"good.test", 443, "not_allowed"},
		{"other.test", 80, "not_allowed"},
		{"wild.test", 80, "not_allowed"},
		{"denied.wild.test", 80, "not_allowed"},
		{"x.good.test", 80, "not_allowed"},
		{"goodxtest", 80, "not_allowed"},
		{"good.test.evil.test", 80, "not_allowed"},
		{"evil-good.test", 80, "not_allowed"},
		{"inner.test", 80, "address"},
		{"inner.test", 81, "not_allowed"},
		{egresstest.PublicAddr, 80, "not_allowed"}, // the literal of an allowed host
		{egresstest.PublicAddr6, 80, "not_allowed"},
		{"127.0.0.1", 80, "address"},
		{"::1", 80, "address"},
		{"10.0.0.5", 80, "address"},
		{"169.254.169.254", 80, "not_allowed"},
		{"192.168.0.5", 80, "not_allowed"},
		{"0.0.0.0", 80, "not_allowed"},
		{"::", 80, "not_allowed"},
		{"fc00::5", 80, "not_allowed"},
		{"64:ff9b::a00:5", 80, "not_allowed"},
		{"2002:a00:5::1", 80, "not_allowed"},
		{"168.63.129.16", 80, "not_allowed"},
		{"100.64.0.1", 80, "not_allowed"},
		{"198.18.0.1", 80, "not_allowed"},
		{"240.0.0.1", 80, "not_allowed"},
		{"localhost", 80, "not_allowed"},
		{"localhost.", 80, "not_allowed"},
		{"hosts-file.test", 80, "not_allowed"},
		{"wiki", 80, "not_allowed"},
		{"127.1", 80, "address"},
		{"127.0.1", 80, "address"},
		{"2130706433", 80, "address"},
		{"0x7f000001", 80, "address"},
		{"0x7f.0.0.1", 80, "address"},
		{"0177.0.0.1", 80, "address"},
		{"017700000001", 80, "address"},
		{"127.0.0.1.", 80, "address"},
		{"1.2.3", 80, "address"},
		{"256.1.1.1", 80, "address"},
		{"good.test.0x7f", 80, "address"},
		{"..", 80, "invalid_url"},
		{"good..test", 80, "invalid_url"},
		{".good.test", 80, "invalid_url"},
		{"good.test..", 80, "invalid_url"},
		{strings.Repeat("a", 64) + ".test", 80, "invalid_url"},
		{strings.Repeat("a.", 125) + "test", 80, "invalid_url"},
		{"dns.google", 443, "not_allowed"},
		{"cloudflare-dns.com", 443, "not_allowed"},
		{"evil-proxy.test", 3128, "not_allowed"},
		{"_x.good.test", 80, "not_allowed"},
		{"*.wild.test", 80, "invalid_url"},
	}
	if len(targets) < 60 {
		t.Errorf("%d targets", len(targets))
	}
	for _, target := range targets {
		for _, way := range allWays {
			_, err := netip.ParseAddr(target.host)
			if way == WayCapture && err == nil && target.want == "" {
				continue // an address needs no name
			}
			got := f.try(way, target.host, target.port)
			if got.reached != (target.want == "") || got.reason != target.want {
				t.Errorf("%s %s:%d: %+v, want %q", way, target.host, target.port, got, target.want)
			}
			if !got.reached && got.typed != map[Way]string{WayHTTP: target.want, WayConnect: target.want, WaySOCKS5: "reply 2", WayCapture: "NXDOMAIN"}[way] &&
				!(way == WayCapture && got.typed == target.want) {
				t.Errorf("%s %s:%d: the program got %+v", way, target.host, target.port, got)
			}
		}
	}
	n.requireUntouched("targets")
	for _, way := range allWays {
		if got := f.try(way, "tls.test", 80); got.reached || got.typed == "" {
			t.Errorf("%s of plain HTTP where TLS is allowed: %+v", way, got)
		}
	}
	// Spellings that not all ways can express.
	for _, host := range []string{
		"::ffff:10.0.0.5", "fe80::1%25lo", "fe80::1%lo", "good.test\x00.evil.test", "good.test\r\nX: y", "user@good.test", "user:pw@good.test",
		"good.test#.evil.test", "good.test/", "good.test\\", "good。test。evil.test", "ｇood.test evil", "1２7.0.0.1", "good.test:80", "",
	} {
		for _, way := range allWays {
			if got := f.try(way, host, 80); got.reached {
				t.Errorf("%s %q was reached", way, host)
			}
		}
	}
	n.requireUntouched("spellings")
	for _, addr := range []string{"127.0.0.1", "0.0.0.0", "10.0.0.5", "169.254.169.254", "fc00::5"} {
		reachDirectly(t, addr, 80)
		if n.takeHits() != 1 {
			t.Errorf("control: the canary at %s doesn't count", addr)
		}
	}
}

// namespaceAnswers is attacks 9 and 11: a name is refused if any of its answers may
// not be dialled, and no search list or hosts file opens another host.
func namespaceAnswers(t *testing.T) {
	n := newNetwork(t, map[string][]answer{
		"mixed.test": {{Addrs: []string{egresstest.PublicAddr, "127.0.0.1"}}}, "six.test": {{Addrs: []string{egresstest.PublicAddr, "::1"}}},
		"mapped.test": {{Addrs: []string{"::ffff:10.0.0.5"}}}, "nat64.test": {{Addrs: []string{"64:ff9b::a00:5"}}}, "sixtofour.test": {{Addrs: []string{"2002:a00:5::1"}}},
		"cname.test": {{CNAME: "localhost.", Addrs: []string{"127.0.0.1"}}}, "inner.test": {{Addrs: []string{"10.0.0.5"}}}, "meta.test": {{Addrs: []string{"169.254.169.254"}}},
		"azure.test": {{Addrs: []string{"168.63.129.16"}}}, "cgnat.test": {{Addrs: []string{"100.64.0.1"}}}, "wiki.evil.test": {{Addrs: []string{"10.0.0.5"}}},
		"searched.test.evil.test": {{Addrs: []string{egresstest.PublicAddr}}}, "none.test": {{}}, "denied.test": {{Addrs: []string{"93.184.216.99", egresstest.PublicAddr}}},
	})
	hosts := map[string]string{
		"mixed.test": "address", "six.test": "address", "mapped.test": "address", "nat64.test": "address", "sixtofour.test": "address", "cname.test": "address",
		"inner.test": "address", "meta.test": "address", "azure.test": "address", "cgnat.test": "address", "wiki": "address", "localhost": "address",
		"hosts-file.test": "address", "hosts-internal.test": "address", "denied.test": "address",
	}
	for _, rules := range [][]string{{"public", "-tcp://93.184.216.99:*"}, {"-tcp://93.184.216.99:*"}} {
		for host := range hosts {
			rules = append(rules, "tcp://"+host+":80")
		}
		f := newFixture(t, nil, rules...)
		for host, want := range hosts {
			for _, way := range allWays {
				if got := f.try(way, host, 80); got.reason != want {
					t.Errorf("%s %s: %+v, want %s", way, host, got, want)
				}
			}
		}
	}
	n.requireUntouched("answers")
	reachDirectly(t, "inner.test.", 80)
	reachDirectly(t, "hosts-internal.test", 80)
	if n.takeHits() != 2 {
		t.Error("control: names don't reach canaries")
	}
	f := newFixture(t, nil, "tcp://searched.test:80", "tcp://none.test:80", "tcp://unknown.test:80")
	for _, host := range []string{"searched.test", "none.test", "unknown.test"} {
		res, _, conn := f.send("CONNECT " + host + ":80 HTTP/1.1\r\nHost: " + host + ":80\r\n\r\n")
		if res.StatusCode != 502 || detailsOf(res) != "resolve" || !strings.Contains(res.Header.Get("Proxy-Status"), "dns_error") {
			t.Errorf("%s: %s %v", host, res.Status, res.Header)
		}
		_ = conn.Close()
	}
}

// namespaceOwnAddresses is attack 10: addresses of the machine's own interfaces are
// refused, public ones too.
func namespaceOwnAddresses(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "ip", "addr", "add", ownAddr+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	own := newCanary(t, ownAddr+":80")
	newNetwork(t, map[string][]answer{"own.test": {{Addrs: []string{ownAddr}}}})
	f := newFixture(t, nil, "public", "tcp://own.test:80", "tcp://"+ownAddr+":80")
	for _, host := range []string{"own.test", ownAddr} {
		for _, way := range allWays {
			if got := f.try(way, host, 80); got.reason != "address" {
				t.Errorf("%s %s: %+v", way, host, got)
			}
		}
	}
	if own.hits.Load() != 0 {
		t.Errorf("%d connections to the own address", own.hits.Load())
	}
	reachDirectly(t, ownAddr, 80)
	guard, err := rule.NewGuard(map[string][]netip.Prefix{"own.test": {netip.MustParsePrefix(ownAddr + "/32")}})
	if err != nil {
		t.Fatal(err)
	}
	named := newFixture(t, func(o *Options) { o.Guard = guard }, "tcp://own.test:80")
	if got := named.try(WayConnect, "own.test", 80); !got.reached {
		t.Errorf("own address that is named: %+v", got)
	}
}

// namespacePrivate checks that only a named host may be at private addresses, and
// that the machine's own name is reached only if a rule and the guard name it.
func namespacePrivate(t *testing.T) {
	n := newNetwork(t, map[string][]answer{"db.test": {{Addrs: []string{"10.0.0.5"}}, {Addrs: []string{"169.254.169.254"}}}, "other.test": {{Addrs: []string{"10.0.0.5"}}}})
	private := map[string][]netip.Prefix{"db.test": {netip.MustParsePrefix("10.0.0.0/24")}, rule.HostName: {netip.MustParsePrefix("127.0.0.1/32")}}
	guard, err := rule.NewGuard(private)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(o *Options) { o.Guard = guard }, "tcp://db.test:80", "tcp://other.test:80", "tcp://10.0.0.5:80", "tcp://"+rule.HostName+":80")
	if got := f.try(WayConnect, "db.test", 80); !got.reached {
		t.Errorf("the host that is allowed: %+v", got)
	}
	if got := f.try(WaySOCKS5, rule.HostName, 80); !got.reached {
		t.Errorf("this machine: %+v", got)
	}
	if n.takeHits() != 2 {
		t.Error("canaries don't count")
	}
	for _, host := range []string{"db.test", "other.test", "10.0.0.5"} { // the first has moved
		if got := f.try(WayConnect, host, 80); got.reason != "address" {
			t.Errorf("%s: %+v", host, got)
		}
	}
	for name, g := range map[string]*fixture{
		"without a rule":    newFixture(t, func(o *Options) { o.Guard = guard }, "public"),
		"without the guard": newFixture(t, nil, "public", "tcp://"+rule.HostName+":80"),
		"other port":        newFixture(t, func(o *Options) { o.Guard = guard }, "tcp://"+rule.HostName+":81"),
	} {
		for _, way := range allWays {
			if got := g.try(way, rule.HostName, 80); got.reached {
				t.Errorf("this machine %s: %+v", name, got)
			}
		}
	}
	n.requireUntouched("others")
}

// namespaceRebinding is attack 9 with a name that is public when it is checked and
// internal when it is dialled.
func namespaceRebinding(t *testing.T) {
	flip := []answer{}
	for range 50 {
		flip = append(flip, answer{Addrs: []string{egresstest.PublicAddr}}, answer{Addrs: []string{"127.0.0.1"}})
	}
	n := newNetwork(t, map[string][]answer{"flip.test": flip})
	f := newFixture(t, nil, "tcp://flip.test:80")
	reached := 0
	for range 50 {
		if f.try(WayConnect, "flip.test", 80).reached {
			reached++
		}
	}
	if reached != 25 {
		t.Errorf("%d of 50 connections to a name that is public every second time succeeded", reached)
	}
	n.requireUntouched("rebinding")
}

// namespaceLookups is attack 22 on the host: lookups never ask a resolver.
func namespaceLookups(t *testing.T) {
	n := newNetwork(t, map[string][]answer{"good.test": {{Addrs: []string{egresstest.PublicAddr}}}})
	f := newFixture(t, nil, "tcp://good.test:80", "tcp://*.wild.test:80")
	for i := range 10_000 {
		if _, ok := f.LookupName(context.Background(), fmt.Sprintf("%x.evil.test", i*7919)); ok {
			t.Fatal("a name that is not allowed has an address")
		}
	}
	for i := range maxNames {
		if _, ok := f.LookupName(context.Background(), fmt.Sprintf("%x.wild.test", i)); !ok {
			t.Fatalf("name %d has no address", i)
		}
	}
	if asked := n.names.Queries(); asked != 0 {
		t.Errorf("lookups asked the resolver %d times", asked)
	}
	if got := f.try(WayConnect, "good.test", 80); !got.reached || n.names.Queries() == 0 {
		t.Errorf("control: %+v, %d queries", got, n.names.Queries())
	}
	if len(f.denials.kept) > maxDenials+10 {
		t.Errorf("%d refusals are kept", len(f.denials.kept))
	}
}
