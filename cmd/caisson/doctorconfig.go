package main

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// leastState is what the state folder should have free: records, spilled output
// and the layers of overlay sessions go there.
const leastState = 1 << 30

// examineConfig checks the files that settings came from, and where state goes.
func (s *setup) examineConfig() []finding {
	const check = "configuration"
	var names []string
	for _, src := range s.conf.Sources {
		names = append(names, src.String())
	}
	findings := []finding{{Check: check, Result: resultOK, Detail: strings.Join(names, ", ")}}
	for _, host := range s.conf.Images.PlainHTTP {
		if !loopback(host) {
			findings = append(findings, finding{
				Check: check, Result: resultWarning, Detail: fmt.Sprintf("images.plain_http: %s is spoken to without TLS: whoever is between can change images", host),
				Mend: "Take it out, and give the registry a certificate.",
			})
		}
	}
	return append(slices.Concat(findings, s.fetching(), s.serving()), s.requirements())
}

// serving checks what caisson serve would take from the configuration: who may
// read its tokens, and who reaches it.
func (s *setup) serving() []finding {
	const check = "serve"
	var findings []finding
	warn := func(detail, mend string) {
		findings = append(findings, finding{Check: check, Result: resultWarning, Detail: detail, Mend: mend})
	}
	conf := s.conf.Serve
	for _, label := range slices.Sorted(maps.Keys(conf.Tokens)) {
		from := conf.Tokens[label]
		if from.Env != nil && s.environ.get(*from.Env) == "" {
			warn(fmt.Sprintf("token %s: %s is not set, so that caisson serve does not start", label, *from.Env), "Set it to a token of openssl rand -hex 32.")
		}
		if from.File == nil {
			continue
		}
		info, err := os.Stat(*from.File)
		switch {
		case err != nil:
			warn(fmt.Sprintf("token %s: %v, so that caisson serve does not start", label, err), "Write a token of openssl rand -hex 32 to it.")
		case info.Mode().Perm()&0o077 != 0:
			warn(fmt.Sprintf("token %s: other users may read %s (mode %04o)", label, *from.File, info.Mode().Perm()), "chmod 600 "+*from.File+", and make a new token.")
		}
	}
	for _, root := range conf.Roots {
		for _, why := range doubts(root, s.environ) {
			warn(fmt.Sprintf("root %s %s", root, why), "Take it out of serve.roots, or name a folder that you alone can write.")
		}
	}
	if remote := conf.AllowRemote; remote != nil && *remote {
		warn("allow_remote: other machines may reach the server, which has no TLS of its own", "Listen on a unix socket or loopback behind a proxy with TLS.")
	}
	return findings
}

// fetching says how what the fetch tool may reach could be seen, or is not
// checked.
func (s *setup) fetching() []finding {
	const check = "fetch"
	f := s.conf.Fetch
	if len(f.Allow) == 0 {
		return nil
	}
	var findings []finding
	warn := func(detail, mend string) {
		findings = append(findings, finding{Check: check, Result: resultWarning, Detail: detail, Mend: mend})
	}
	for _, rule := range f.Allow {
		if u, err := url.Parse(rule); err == nil && u.Scheme == "http" && !loopback(u.Host) {
			warn(rule+" is fetched without TLS: whoever is between can change what the model reads", "Use https:// in fetch.allow.")
		}
	}
	for _, host := range slices.Sorted(maps.Keys(f.Private)) {
		for _, network := range f.Private[host] {
			if holdsMetadata(network) {
				warn(fmt.Sprintf("%s may be at %s, where clouds keep a machine's credentials", host, network), "Name the addresses that the host really has in fetch.private.")
			}
		}
	}
	if f.Proxy != nil {
		warn("a proxy makes the connections: what addresses it reaches can't be checked here", "Let the proxy refuse private addresses, or take fetch.proxy out.")
	}
	return append([]finding{{Check: check, Result: resultOK, Detail: fmt.Sprintf("on, for %s", strings.Join(f.Allow, ", "))}}, findings...)
}

// metadata are the addresses at which clouds answer machines.
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// holdsMetadata says whether a network, or an address, holds one of them.
func holdsMetadata(text string) bool {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return false
		}
		prefix = netip.PrefixFrom(ip, ip.BitLen())
	}
	return slices.ContainsFunc(metadata, prefix.Contains)
}

// requirements says whether there is an administrator's file. One that is not
// the administrator's is an error of the configuration.
func (s *setup) requirements() finding {
	const check = "requirements"
	i := slices.IndexFunc(s.conf.Sources, func(src config.Source) bool { return src.Name == "requirements" })
	if i < 0 {
		return finding{Check: check, Result: resultOK, Detail: "none at " + s.deps.requirements}
	}
	return finding{Check: check, Result: resultOK, Detail: s.conf.Sources[i].Path + " counts: root alone can write it"}
}

// state checks the folder of sessions and answers.
func (s *setup) state() finding {
	const check = "state folder"
	dir := s.environ.stateDir()
	if err := sessiondir.CheckStateDir(dir); err != nil {
		return failed(check, err)
	}
	f := finding{Check: check, Result: resultWarning, Detail: dir, Mend: "Set XDG_STATE_HOME to a folder that stays."}
	if temp := below(dir, temporary(s.environ)); temp != "" {
		f.Detail = fmt.Sprintf("%s is below %s, which is emptied: records, approvals and kept changes go with it", dir, temp)
		return f
	}
	free, err := freeSpace(dir)
	switch {
	case err != nil:
		f.Detail += ": " + err.Error()
		f.Mend = "Make it writable, or set XDG_STATE_HOME to another folder."
	case free < leastState:
		f.Detail += fmt.Sprintf(" has %s free", ui.FormatSize(free))
		f.Mend = "Make room there, or set XDG_STATE_HOME to a folder on a larger disk."
	default:
		f = finding{Check: check, Result: resultOK, Detail: fmt.Sprintf("%s, %s free", dir, ui.FormatSize(free))}
	}
	return f
}

// model makes the model, as a run would, and asks it nothing.
func (s *setup) model() finding {
	const check = "model"
	m, err := s.conf.SelectModel(s.environ)
	if err != nil {
		f := failed(check, noModel(err))
		f.Result = resultWarning
		return f
	}
	detail := m.Provider + "/" + m.Name
	if m.BaseURL != "" {
		detail += " at " + safeurl.String(m.BaseURL)
	}
	warn := func(text, mend string) finding {
		return finding{Check: check, Result: resultWarning, Detail: detail + ": " + text, Mend: mend}
	}
	if m.KeyNeeded && m.APIKey == "" {
		return warn(m.KeyEnv+" is not set", "Set it to your key.")
	}
	_, closeModel, err := s.deps.model(m, modelSettings{stream: *s.conf.Stream, differs: func(string) {}, logger: zap.NewNop()})
	if err != nil {
		return failed(check, err)
	}
	closeModel()
	base, err := url.Parse(m.BaseURL)
	switch {
	case err == nil && base.Scheme == "http" && m.APIKey != "" && !loopback(base.Host):
		return warn("the key and all that the model reads go over the network without TLS", "Use https:// in base_url.")
	case m.Provider != "replay" && m.Price == nil && (err != nil || !loopback(base.Host)):
		return warn("its price is unknown, and so is what a run costs", "Give its profile under models: a price.")
	}
	return finding{Check: check, Result: resultOK, Detail: detail}
}

// loopback says whether host or host:port is this machine.
func loopback(host string) bool {
	if u := (&url.URL{Host: host}); u.Hostname() != "" {
		host = u.Hostname()
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && ip.IsLoopback()
}
