package worker_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/fetch"
	"github.com/caisson-run/caisson/tools/policy"
)

// pageAddr is the only address of this machine that these tests' workers may fetch
// from.
const pageAddr = "127.0.0.2"

// rebindingResolver returns a resolver whose server answers an address query first with
// pageAddr, then with 127.0.0.1.
func rebindingResolver(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for addr := netip.MustParseAddr(pageAddr); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: addr.As4()},
				}}
				addr = netip.MustParseAddr("127.0.0.1")
			}
			if reply, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// startPages starts a server at pageAddr, with the port of a canary at 127.0.0.1. It
// redirects to the parameter "to", or else serves a page.
func startPages(t *testing.T, c *canary) (port string) {
	t.Helper()
	_, port, _ = net.SplitHostPort(strings.TrimPrefix(c.url, "http://"))
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(pageAddr, port))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte("The page says 7."))
	}))
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return port
}

// guardedTools returns fetch for a worker that may fetch from pageAddr, by address and
// as pages.test. The rules alone would permit all URLs.
func guardedTools(t *testing.T, resolver *net.Resolver, urls ...string) worker.ToolOptions {
	t.Helper()
	pages := []netip.Prefix{netip.MustParsePrefix(pageAddr + "/32")}
	o := fetch.Options{Private: map[string][]netip.Prefix{pageAddr: pages, "pages.test": pages}, Resolver: resolver}
	for _, u := range urls {
		allowed, err := rule.ParseFetch(u)
		if err != nil {
			t.Fatal(err)
		}
		o.Allow = append(o.Allow, allowed)
	}
	var err error
	if o.Egress, err = limits.NewEgress(limits.DefaultEgressBudget()); err != nil {
		t.Fatal(err)
	}
	o.Hosts = &limits.Breakers{Name: limits.BreakerFetchHost}
	f, err := fetch.New(o)
	if err != nil {
		t.Fatal(err)
	}
	pol, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	return worker.ToolOptions{Names: []string{"fetch"}, Factories: []tools.Factory{f}, Policy: pol}
}

// TestFetchOfWorkersIsGuarded checks that redirects, internal addresses and changing
// names lead a worker nowhere else. The control is a client without guards, which
// reaches the canary by the same URLs.
func TestFetchOfWorkersIsGuarded(t *testing.T) {
	c := newCanary(t)
	port := startPages(t, c)
	page, named := "http://"+net.JoinHostPort(pageAddr, port)+"/", "http://pages.test:"+port+"/"
	for name, tt := range map[string]struct {
		// urls are fetched in order; the last one must not be.
		urls  []string
		rules []string
	}{
		"redirect to a URL outside of the rules":   {urls: []string{page + "?to=" + c.url}, rules: []string{page}},
		"redirect to an internal address":          {urls: []string{page + "?to=" + c.url}, rules: []string{page, c.url}},
		"internal address":                         {urls: []string{c.url}, rules: []string{page, c.url}},
		"internal address as IPv6":                 {urls: []string{"http://[::ffff:127.0.0.1]:" + port + "/"}, rules: []string{page, c.url}},
		"name that becomes internal":               {urls: []string{named, named + "again"}, rules: []string{named}},
		"name that becomes internal at a redirect": {urls: []string{named + "?to=http://pages.test:" + port + "/again"}, rules: []string{named}},
	} {
		t.Run(name, func(t *testing.T) {
			resolver := rebindingResolver(t)
			transport := &http.Transport{DialContext: (&net.Dialer{Resolver: resolver}).DialContext, DisableKeepAlives: true}
			for _, u := range tt.urls {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := (&http.Client{Transport: transport}).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			}
			if c.hits.Swap(0) == 0 {
				t.Fatal("control: a client without guards does not reach the canary")
			}
			var answers []string
			for _, u := range tt.urls {
				answers = append(answers, fetchCall(u))
			}
			p := newProvider(t, map[string][]string{"a": append(answers, "7")})
			got := confer(t, worker.ConferOptions{
				Options:  worker.Options{Tools: guardedTools(t, rebindingResolver(t), tt.rules...)},
				Profiles: []loop.Profile{p.profile("a")},
			})
			want := strings.Repeat("fetch=ok ", len(tt.urls)-1) + "fetch=refused"
			if s := statuses(got.Answers[0].InnerToolCalls); s != want {
				t.Errorf("calls %s, want %s: %s", s, want, p.received("a")[len(tt.urls)].last())
			}
			if n := c.hits.Load(); n != 0 {
				t.Errorf("%d connections to the canary", n)
			}
			for i, r := range p.received("a")[1:] {
				if got := strings.Contains(r.last(), "The page says 7."); got != (i < len(tt.urls)-1) {
					t.Errorf("result %d: %s", i+1, r.last())
				}
				if strings.Contains(r.last(), "secret") {
					t.Errorf("result %d has the text of the canary", i+1)
				}
			}
		})
	}
}
