package fetch

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/egresstest"
)

const (
	publicAddr  = egresstest.PublicAddr
	publicAddr6 = egresstest.PublicAddr6
)

// answer is the answer of the name server to one query for a name.
type answer = egresstest.Answer

// TestPublicNetwork runs acceptance cases 59, 60, 63 and 67 in a network namespace,
// with addresses that are public there.
func TestPublicNetwork(t *testing.T) {
	if !egresstest.InNamespace() {
		egresstest.Run(t, 5, "HTTP_PROXY=http://"+publicAddr+":3128", "http_proxy=http://"+publicAddr+":3128")
		return
	}
	t.Run("literals", namespaceLiterals)
	t.Run("rebinding", namespaceRebinding)
	t.Run("mixed answers", namespaceMixedAnswers)
	t.Run("allowed by name", namespaceAllowedByName)
	t.Run("proxy", namespaceProxy)
}

// network is the set of servers of the namespace: a public one, and canaries at
// other addresses, all on port 80.
type network struct {
	t        *testing.T
	public   atomic.Int64
	canaries []*canary
	names    *egresstest.NameServer
}

func newNetwork(t *testing.T, answers map[string][]answer) *network {
	t.Helper()
	w := &network{t: t, names: egresstest.StartNameServer(t, answers)}
	for _, addr := range []string{publicAddr, publicAddr6} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(addr, "80"))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.public.Add(1)
			if to := r.URL.Query().Get("to"); to != "" {
				rw.Header().Set("Location", to)
				rw.WriteHeader(http.StatusFound)
				return
			}
			serveHello(rw, r)
		})}
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(l) })
		t.Cleanup(func() {
			_ = s.Close()
			wg.Wait()
		})
	}
	for _, addr := range egresstest.CanaryAddrs {
		w.canaries = append(w.canaries, newCanary(t, net.JoinHostPort(addr, "80")))
	}
	return w
}

// takeHits returns the number of connections to all canaries, and resets it.
func (w *network) takeHits() int64 {
	var n int64
	for _, c := range w.canaries {
		n += c.hits.Swap(0)
	}
	return n
}

// requireReachable is the positive control: it fails the test if a client without
// a policy doesn't reach a canary by a URL.
func (w *network) requireReachable(u string) {
	w.t.Helper()
	err := fetchNaively(w.t, nil, u)
	if w.takeHits() == 0 {
		w.t.Errorf("control: a naive client doesn't reach a canary by %s (%v), so nothing is shown", u, err)
	}
}

// requireUntouched fails the test if there were connections to a canary.
func (w *network) requireUntouched(what string) {
	w.t.Helper()
	if n := w.takeHits(); n != 0 {
		w.t.Errorf("%s: %d connections to canaries", what, n)
	}
}

// newOpenFixture returns a client that may fetch the given URLs.
func newOpenFixture(t *testing.T, urls ...string) *fixture {
	t.Helper()
	return newFixture(t, openOptions(t), urls...)
}

// openOptions returns options whose budget and breakers refuse nothing.
func openOptions(t *testing.T) Options {
	t.Helper()
	egress, err := limits.NewEgress(limits.EgressBudget{Bytes: 1 << 30, Hosts: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var now time.Time
	later := func() time.Time { now = now.Add(limits.BreakerMaxCooldown); return now } // each cooldown is over
	return Options{Egress: egress, Hosts: &limits.Breakers{Name: limits.BreakerFetchHost, Now: later}}
}

// namespaceLiterals is acceptance case 59: addresses that are not public are
// refused, even if they are on the allowlist and a server listens there.
func namespaceLiterals(t *testing.T) {
	w := newNetwork(t, nil)
	for _, addr := range egresstest.CanaryAddrs {
		u := "http://" + netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String() + "/"
		w.requireReachable(u)
		f := newOpenFixture(t, u)
		if d := f.requireRefused(u, "address"); d.Addr != addr {
			t.Errorf("%s: recorded %+v", u, d)
		}
	}
	for _, spelled := range []string{"http://0.0.0.0/", "http://[::]/", "http://[::ffff:10.0.0.5]/", "http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://017700000001/"} {
		f := newOpenFixture(t, "http://"+publicAddr+"/")
		if _, err := f.get(spelled); err == nil {
			t.Errorf("%s was fetched", spelled)
		}
	}
	w.requireReachable("http://0.0.0.0/")
	w.requireReachable("http://[::ffff:10.0.0.5]/")
	w.requireUntouched("literals")
	for _, u := range []string{"http://" + publicAddr + "/", "http://[" + publicAddr6 + "]/"} {
		if res, err := newOpenFixture(t, u).get(u); err != nil || string(res.Body) != "hello" {
			t.Errorf("a public address: %v", err)
		}
	}
	for _, to := range []string{"http://169.254.169.254/latest/meta-data/", "http://127.0.0.1/", "http://[::1]/"} {
		u := "http://" + publicAddr + "/?to=" + to
		w.requireReachable(u)
		newOpenFixture(t, "http://"+publicAddr+"/", to).requireRefused(u, "address")
		w.requireUntouched("redirect to " + to)
	}
}

// namespaceRebinding is acceptance case 60: a name that is public when it is
// checked and internal when it is dialled.
func namespaceRebinding(t *testing.T) {
	public, inner := answer{Addrs: []string{publicAddr}}, answer{Addrs: []string{"127.0.0.1"}}
	flip := []answer{}
	for range 100 {
		flip = append(flip, public, inner)
	}
	w := newNetwork(t, map[string][]answer{
		"second.test": {public, inner}, "flip.test": flip, "control.test": {public, inner}, "hop.test": {public, inner}, "meta.test": {public, {Addrs: []string{"169.254.169.254"}}},
	})
	// The naive way: resolve, look, and then dial by name.
	addrs, err := (&net.Resolver{PreferGo: true}).LookupNetIP(t.Context(), "ip4", "control.test.")
	if err != nil || addrs[0].Unmap().String() != publicAddr {
		t.Fatalf("control: %v, %v", addrs, err)
	}
	w.requireReachable("http://control.test./")

	for _, name := range []string{"second.test", "meta.test"} {
		f := newOpenFixture(t, "http://"+name+"/")
		if res, err := f.get("http://" + name + "/"); err != nil || string(res.Body) != "hello" {
			t.Errorf("%s, the first time: %v", name, err)
		}
		f.requireRefused("http://"+name+"/", "address")
	}
	hop := newOpenFixture(t, "http://hop.test/")
	if d := hop.requireRefused("http://hop.test/?to=/again", "address"); !d.Redirect || d.Addr != "127.0.0.1" {
		t.Errorf("a redirect to itself, which is elsewhere by then: recorded %+v", d)
	}
	f := newOpenFixture(t, "http://flip.test/")
	fetched := 0
	for range 100 {
		if _, err := f.get("http://flip.test/"); err == nil {
			fetched++
		}
	}
	if fetched != 50 {
		t.Errorf("%d of 100 fetches of a name that is public every second time succeeded", fetched)
	}
	w.requireUntouched("rebinding")
}

// namespaceMixedAnswers is acceptance case 63: a name is refused if any of its
// answers is internal.
func namespaceMixedAnswers(t *testing.T) {
	many, hidden := []string{}, []string{}
	for i := range 500 {
		many = append(many, fmt.Sprintf("93.184.%d.%d", 100+i/250, i%250))
		hidden = append(hidden, many[i])
	}
	many[0], hidden[499] = publicAddr, "10.0.0.5"
	w := newNetwork(t, map[string][]answer{
		"mixed.test":              {{Addrs: []string{publicAddr, "127.0.0.1"}}},
		"inner-first.test":        {{Addrs: []string{"127.0.0.1", publicAddr}}},
		"six.test":                {{Addrs: []string{publicAddr, "::1"}}},
		"mapped.test":             {{Addrs: []string{"::ffff:10.0.0.5"}}},
		"nat64.test":              {{Addrs: []string{"64:ff9b::a00:5"}}},
		"sixtofour.test":          {{Addrs: []string{"2002:a00:5::1"}}},
		"cname.test":              {{CNAME: "localhost.", Addrs: []string{"127.0.0.1"}}},
		"internal.test":           {{Addrs: []string{"10.0.0.5"}}},
		"sub.internal.test":       {{Addrs: []string{"10.0.0.5"}}},
		"hidden.test":             {{Addrs: hidden}},
		"many.test":               {{Addrs: many}},
		"none.test":               {{}},
		"late.test":               {{RCode: dnsmessage.RCodeNameError}, {Addrs: []string{publicAddr}}},
		"fails.test":              {{RCode: dnsmessage.RCodeServerFailure}},
		"good.test":               {{Addrs: []string{publicAddr, publicAddr6}}},
		"searched.test.evil.test": {{Addrs: []string{publicAddr}}},
		"wiki.evil.test":          {{Addrs: []string{"10.0.0.5"}}},
	})
	for _, name := range []string{
		"mixed.test", "inner-first.test", "six.test", "mapped.test", "nat64.test", "sixtofour.test", "cname.test", "internal.test",
		"sub.internal.test", "hidden.test", "localhost", "localhost.", "x.localhost", "hosts-file.test", "hosts-internal.test", "wiki",
	} {
		u := "http://" + name + "/"
		switch name {
		case "mixed.test", "hidden.test", "six.test", "localhost.", "x.localhost", "wiki": // which of the answers a naive client tries is up to it
		default:
			w.requireReachable(u)
		}
		f := newOpenFixture(t, u)
		_, err := f.get(u)
		if got := reasonOf(err); got != "address" && !(name == "x.localhost" && got == "resolve") {
			t.Errorf("%s: %v, want a refusal of its address", name, err)
		}
		w.requireUntouched(name)
	}
	for name, want := range map[string]string{"none.test": "resolve", "late.test": "resolve", "fails.test": "resolve", "unknown.test": "resolve", "searched.test": "resolve", "good.test": "", "many.test": ""} {
		u := "http://" + name + "/"
		if _, err := newOpenFixture(t, u).get(u); reasonOf(err) != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if res, err := newOpenFixture(t, "http://late.test/").get("http://late.test/"); err != nil || string(res.Body) != "hello" {
		t.Errorf("name that exists at last: %v", err)
	}
	w.requireUntouched("answers")
}

// namespaceAllowedByName checks that an operator can permit one host in one
// private network.
func namespaceAllowedByName(t *testing.T) {
	w := newNetwork(t, map[string][]answer{
		"wiki.test":  {{Addrs: []string{"10.0.0.5"}}, {Addrs: []string{"169.254.169.254"}}},
		"other.test": {{Addrs: []string{"10.0.0.5"}}},
	})
	o := openOptions(t)
	o.Private = map[string][]netip.Prefix{"wiki.test": {netip.MustParsePrefix("10.0.0.0/24")}}
	f := newFixture(t, o, "http://wiki.test/", "http://other.test/", "http://10.0.0.5/")
	if res, err := f.get("http://wiki.test/"); err != nil || string(res.Body) != "secret" {
		t.Errorf("the host that is allowed: %v", err)
	}
	if w.takeHits() != 1 {
		t.Error("the canary does not count")
	}
	f.requireRefused("http://wiki.test/", "address") // it has moved
	f.requireRefused("http://other.test/", "address")
	f.requireRefused("http://10.0.0.5/", "address")
	w.requireUntouched("others")
}

// namespaceProxy is acceptance case 67 with an address that is not
// loopback, for which net/http's own default asks the environment.
func namespaceProxy(t *testing.T) {
	w := newNetwork(t, map[string][]answer{"docs.test": {{Addrs: []string{publicAddr}}}})
	proxy := newCanary(t, publicAddr+":3128")
	err := fetchNaively(t, &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}, "http://docs.test/")
	if proxy.hits.Swap(0) == 0 {
		t.Errorf("control: the environment's proxy is not used by a client that asks for it: %v", err)
	}
	if res, err := newOpenFixture(t, "http://docs.test/").get("http://docs.test/"); err != nil || string(res.Body) != "hello" {
		t.Errorf("%v", err)
	}
	proxy.requireUntouched(t)
	w.requireUntouched("proxy")
}
