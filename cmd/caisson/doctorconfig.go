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
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// checkConfig checks the files that settings came from.
func (s *settings) checkConfig() []doctor.Finding {
	const check = "configuration"
	var names []string
	for _, src := range s.conf.Sources {
		names = append(names, src.String())
	}
	findings := []doctor.Finding{{Check: check, Result: doctor.OK, Detail: strings.Join(names, ", ")}}
	for _, host := range s.conf.Images.PlainHTTP {
		if !isLoopback(host) {
			findings = append(findings, doctor.Finding{
				Check: check, Result: doctor.Warning, Detail: fmt.Sprintf("images.plain_http: %s has no TLS: anyone on the way can change images", host),
				Hint: "Remove it, and install a certificate on the registry.",
			})
		}
	}
	return append(slices.Concat(findings, checkFetch(s.conf.Fetch), checkServe(s.conf.Serve, s.environ)), s.checkRequirements())
}

// checkServe checks the settings of caisson serve: its tokens and its clients.
func checkServe(conf config.Serve, env environ) []doctor.Finding {
	const check = "serve"
	var findings []doctor.Finding
	warn := func(detail, hint string) {
		findings = append(findings, doctor.Finding{Check: check, Result: doctor.Warning, Detail: detail, Hint: hint})
	}
	for _, label := range slices.Sorted(maps.Keys(conf.Tokens)) {
		from := conf.Tokens[label]
		if from.Env != nil && env.get(*from.Env) == "" {
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
		for _, doubt := range doctor.Doubts(root, env.home(), env.temporaryDirs()) {
			warn(fmt.Sprintf("root %s %s", root, doubt), "Remove it from serve.roots, or name a directory that you alone can write.")
		}
	}
	if remote := conf.AllowRemote; remote != nil && *remote {
		warn("allow_remote: other machines may reach the server, which has no TLS of its own", "Listen on a unix socket or loopback behind a proxy with TLS.")
	}
	return findings
}

// checkFetch checks what the fetch tool may reach.
func checkFetch(f config.Fetch) []doctor.Finding {
	const check = "fetch"
	if len(f.Allow) == 0 {
		return nil
	}
	var findings []doctor.Finding
	warn := func(detail, hint string) {
		findings = append(findings, doctor.Finding{Check: check, Result: doctor.Warning, Detail: detail, Hint: hint})
	}
	for _, rule := range f.Allow {
		if u, err := url.Parse(rule); err == nil && u.Scheme == "http" && !isLoopback(u.Host) {
			warn(rule+" is fetched without TLS: anyone on the way can change what the model reads", "Use https:// in fetch.allow.")
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
		warn("a proxy makes the connections: what addresses it reaches can't be checked here", "Let the proxy refuse private addresses, or remove fetch.proxy.")
	}
	return append([]doctor.Finding{{Check: check, Result: doctor.OK, Detail: fmt.Sprintf("on, for %s", strings.Join(f.Allow, ", "))}}, findings...)
}

// metadata are the addresses at which clouds answer machines.
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// holdsMetadata reports whether a network, or an address, holds one of them.
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

// checkRequirements describes the administrator's file.
func (s *settings) checkRequirements() doctor.Finding {
	const check = "requirements"
	i := slices.IndexFunc(s.conf.Sources, func(src config.Source) bool { return src.Name == "requirements" })
	if i < 0 {
		return doctor.Finding{Check: check, Result: doctor.OK, Detail: "none at " + s.deps.requirements}
	}
	return doctor.Finding{Check: check, Result: doctor.OK, Detail: s.conf.Sources[i].Path + " counts: root alone can write it"}
}

// checkModel makes the model, as a run would, and asks it nothing.
func (s *settings) checkModel() doctor.Finding {
	const check = "model"
	m, err := s.conf.SelectModel(s.environ)
	if err != nil {
		f := failedFinding(check, noModel(err))
		f.Result = doctor.Warning
		return f
	}
	detail := m.Provider + "/" + m.Name
	if m.BaseURL != "" {
		detail += " at " + safeurl.String(m.BaseURL)
	}
	warn := func(text, hint string) doctor.Finding {
		return doctor.Finding{Check: check, Result: doctor.Warning, Detail: detail + ": " + text, Hint: hint}
	}
	if m.KeyNeeded && m.APIKey == "" {
		return warn(m.KeyEnv+" is not set", "Set it to your key.")
	}
	_, closeModel, err := s.deps.model(m, modelSettings{stream: *s.conf.Stream, differs: func(string) {}, logger: zap.NewNop()})
	if err != nil {
		return failedFinding(check, err)
	}
	closeModel()
	base, err := url.Parse(m.BaseURL)
	switch {
	case err == nil && base.Scheme == "http" && m.APIKey != "" && !isLoopback(base.Host):
		return warn("the key and all that the model reads go over the network without TLS", "Use https:// in base_url.")
	case m.Provider != "replay" && m.Price == nil && (err != nil || !isLoopback(base.Host)):
		return warn("its price is unknown, and so is what a run costs", "Add a price to its profile under models:.")
	}
	return doctor.Finding{Check: check, Result: doctor.OK, Detail: detail}
}

// isLoopback reports whether host or host:port is this machine.
func isLoopback(host string) bool {
	if u := (&url.URL{Host: host}); u.Hostname() != "" {
		host = u.Hostname()
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && ip.IsLoopback()
}
