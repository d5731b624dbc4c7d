package wire

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// messages are one of each; the fuzzer's seeds too.
func messages() []any {
	return []any{
		&Config{Protocol: Version, CommandUID: 10001, CommandGID: 10001, GIDBase: 30000, GIDCount: 20000, Workspace: "/workspace"},
		&Hello{
			Protocol: Version, Version: "v1", Guest: Identity{Groups: []uint32{}}, Command: Identity{UID: [4]uint32{1, 2, 3, 4}, Groups: []uint32{5}},
			Namespaces: map[string]uint64{"pid": 4026531836}, Root: Mount{Path: "/", Options: []string{"ro"}},
			Workspace: Mount{Options: []string{}}, Interfaces: []string{"lo"}, Probe: &Probe{Results: map[string]string{"bpf": "EPERM"}, Descriptors: []int{0, 1, 2}},
		},
		&Open{Exec: &Exec{Argv: [][]byte{[]byte("sh"), []byte("\xff\x00")}, Env: [][]byte{}, Live: 1, Tail: 2, Timeout: 3}},
		&Open{Apply: &Apply{Size: 213}},
		&Open{Accept: &Accept{Local: netip.MustParseAddrPort("127.80.0.7:61080"), UID: new(uint32(10001))}},
		&Open{Lookup: &Lookup{Name: "example.com"}},
		&LookupAnswer{Address: new(netip.MustParseAddr("127.96.0.1"))},
		&RelayEnd{Reset: true},
		&Started{PID: 7},
		&Refused{Code: RefusedBusy, Text: "text"},
		&Cancel{},
		&Exit{Code: -1, Signal: 9, OOMKilled: true, Stdout: Output{Total: 5, SHA256: "98ea", Live: 3, Tail: []byte("\xff\xfe")}, Kill: Kill{Method: "gid", Killed: 2}},
		&Applied{Error: &OpError{Kind: "escape", Path: "../x", Detail: "d"}},
		&Applied{Cancelled: true},
	}
}

func TestMessages(t *testing.T) {
	for _, m := range messages() {
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := zero(m)
		if err := Decode(text, got); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(m, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
			t.Errorf("%T (-want +got):\n%s", m, diff)
		}
	}
}

func zero(m any) any {
	switch m.(type) {
	case *Config:
		return new(Config)
	case *Hello:
		return new(Hello)
	case *Open:
		return new(Open)
	case *Started:
		return new(Started)
	case *Refused:
		return new(Refused)
	case *Cancel:
		return new(Cancel)
	case *Exit:
		return new(Exit)
	case *LookupAnswer:
		return new(LookupAnswer)
	case *RelayEnd:
		return new(RelayEnd)
	}
	return new(Applied)
}

func TestDecodeRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty":         "",
		"unknown field": `{"pid":1,"uid":0}`,
		"wrong type":    `{"pid":"1"}`,
		"two values":    `{"pid":1}{"pid":2}`,
		"rubbish after": `{"pid":1} x`,
		"number":        `1`,
		"deep":          strings.Repeat("[", 20000),
		"overflow":      `{"pid":99999999999999999999}`,
	} {
		if err := Decode([]byte(text), new(Started)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	good := Config{Protocol: Version, CommandUID: 10001, CommandGID: 10001, GIDBase: 30000, GIDCount: 20000, Workspace: "/workspace"}
	good.Layered = []Layered{{Target: "/w", Upper: LayersDir + "/1", Lowers: []string{LayersDir + "/2"}}, {Target: "/w/x", Source: LayersDir + "/3"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"protocol":          func(c *Config) { c.Protocol++ },
		"workspace":         func(c *Config) { c.Workspace = "workspace" },
		"uid 0":             func(c *Config) { c.CommandUID = 0 },
		"gid 0":             func(c *Config) { c.CommandGID = 0 },
		"no range":          func(c *Config) { c.GIDCount = 0 },
		"range from 0":      func(c *Config) { c.GIDBase = 0 },
		"range too high":    func(c *Config) { c.GIDBase = 1 << 31 },
		"range wraps":       func(c *Config) { c.GIDBase, c.GIDCount = 1<<31-10, 1<<32-1 },
		"own gid in it":     func(c *Config) { c.GIDBase = 10000 },
		"own gid its start": func(c *Config) { c.GIDBase = 10001 },
		"made of nothing":   func(c *Config) { c.Layered = []Layered{{Target: "/w", Upper: LayersDir + "/1"}} },
		"layer elsewhere": func(c *Config) {
			c.Layered = []Layered{{Target: "/w", Upper: LayersDir + "/1", Lowers: []string{"/usr"}}}
		},
		"upper elsewhere": func(c *Config) {
			c.Layered = []Layered{{Target: "/w", Upper: "/usr", Lowers: []string{LayersDir + "/1"}}}
		},
		"source elsewhere": func(c *Config) { c.Layered = []Layered{{Target: "/w", Source: LayersDir}} },
		"an option":        func(c *Config) { c.Layered = []Layered{{Target: "/w", Source: LayersDir + "/1,upperdir=/usr"}} },
	} {
		c := good
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: %+v is accepted", name, c)
		}
	}
	root := Config{Protocol: Version, Root: true, Workspace: "/workspace"}
	if err := root.Validate(); err != nil {
		t.Errorf("root: %v", err)
	}
	root.CommandUID = 10001
	if root.Validate() == nil {
		t.Error("root is user 10001")
	}
	single := Config{Protocol: Version, SingleUID: true, Workspace: "/workspace"}
	if err := single.Validate(); err != nil {
		t.Errorf("one user: %v", err)
	}
}

// FuzzDecode checks that an accepted payload is the same after a round trip.
func FuzzDecode(f *testing.F) {
	seeds := messages()
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, m := range seeds {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, m := range messages() {
			first := zero(m)
			if err := Decode(payload, first); err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Fatalf("error is %v", err)
				}
				continue
			}
			if c, ok := first.(*Config); ok {
				_ = c.Validate()
			}
			text, err := json.Marshal(first)
			if err != nil {
				t.Fatal(err)
			}
			second := zero(m)
			if err := Decode(text, second); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			again, err := json.Marshal(second)
			if err != nil || string(again) != string(text) {
				t.Fatalf("%s became %s", text, again)
			}
		}
	})
}
