// Package preset has what package managers need to work in a sandbox: the rules for
// their public registries, the variables and files that configure them, and the
// URLs that may be cached. Presets only read. None allows publishing, but git may
// push to [Options].Push.
package preset

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools/egress/cache"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// ProxyPlaceholder stands for the URL of a command's proxy, without a trailing
// slash, in [Preset.Env].
const ProxyPlaceholder = "{proxy}"

// FilesPlaceholder stands for the directory of [Preset.Files] in [Preset.Env].
const FilesPlaceholder = "{files}"

// Preset is what one package manager needs.
type Preset struct {
	Name  string
	Rules []rule.Rule
	// Env are variables for commands, as NAME=value.
	Env []string
	// Files are small files, by name, that Env refers to.
	Files map[string]string
	// Mirrors are paths of the proxy that stand for registries.
	Mirrors []Mirror
	// NeedsRoots reports whether programs must trust the session's authority,
	// NeedsJavaRoots whether Java must.
	NeedsRoots, NeedsJavaRoots bool

	sources []source
}

// Mirror is a path of the proxy, such as /go/, that stands for a registry's URL.
// Programs need no TLS for it, and no file records its address.
type Mirror struct {
	Path string // with / at both ends
	URL  string // with / at its end
}

// NeededBy returns the name of the preset that a program without network access
// lacked, judging by its output, or "".
func NeededBy(output ...[]byte) string {
	for i, pattern := range offlinePatterns() {
		if slices.ContainsFunc(output, pattern.Match) {
			return table[i].name
		}
	}
	return ""
}

// offlinePatterns are the patterns of the table, by row.
var offlinePatterns = sync.OnceValue(func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for i := range table {
		all = append(all, regexp.MustCompile("(?m)"+strings.Join(table[i].offline, "|")))
	}
	return all
})

// For returns the name of the preset with a public registry at a host, or "".
func For(host string) string {
	if host == "sum.golang.org" { // go asks it if no proxy has the checksum database
		return "go"
	}
	for i := range table {
		if slices.ContainsFunc(table[i].sources, func(s source) bool { u, err := url.Parse(s.url); return err == nil && u.Hostname() == host }) {
			return table[i].name
		}
	}
	return ""
}

// PublicRegistry returns the URL of a preset's public registry.
func PublicRegistry(name string) string {
	for i := range table {
		if table[i].name == name {
			return table[i].sources[0].url
		}
	}
	return ""
}

// Options configure presets.
type Options struct {
	// Registries are the user's own registries, by preset. Their servers have the
	// layout of the public ones.
	Registries map[string][]Registry
	// Fetch and Push list the URLs of git repositories that may be fetched from and
	// pushed to.
	Fetch, Push []string
	// GitHeader returns the header that git sends to a URL, and false for none. It
	// may be nil.
	GitHeader func(url string) (string, bool)
}

// Names returns the names of all presets except git, sorted.
func Names() []string {
	var names []string
	for i := range table {
		names = append(names, table[i].name)
	}
	slices.Sort(names)
	return names
}

// New returns a preset by name. Its errors are for the author of the configuration.
func New(name string, o Options) (*Preset, error) {
	at := slices.IndexFunc(table, func(d data) bool { return d.name == name })
	if at < 0 {
		return nil, fmt.Errorf("unknown preset %q, want one of %s", name, strings.Join(Names(), ", "))
	}
	d := &table[at]
	p := &Preset{Name: name, Env: slices.Clone(d.env), Files: d.files, NeedsJavaRoots: d.java}
	p.sources = slices.Clone(d.sources)
	own := slices.Clone(o.Registries[name])
	if slices.ContainsFunc(own, func(r Registry) bool { return r.For == "" }) {
		p.sources = slices.DeleteFunc(p.sources, func(s source) bool { return s.registry })
	}
	for i := range own {
		base, err := registryURL(own[i].URL)
		if err != nil {
			return nil, fmt.Errorf("preset %s: registry: %w", name, err)
		}
		own[i].URL = base
		for _, s := range d.sources {
			if path, ok := strings.CutPrefix(s.url, d.sources[0].url); ok && s.registry {
				p.sources = append(p.sources, source{url: base + path, methods: s.methods, kind: s.kind, registry: true})
			}
		}
	}
	if d.configure != nil {
		d.configure(p, own)
	}
	for _, s := range p.sources {
		r, err := rule.ParseEgress(s.url)
		if err == nil && s.methods != nil {
			r, err = r.WithMethods(s.methods)
		}
		if err != nil {
			return nil, fmt.Errorf("preset %s: %w", name, err)
		}
		p.Rules = append(p.Rules, r)
		p.NeedsRoots = p.NeedsRoots || r.EndsTLS() && d.mirror == ""
	}
	if d.mirror != "" {
		p.Mirrors = []Mirror{{Path: d.mirror, URL: p.sources[slices.IndexFunc(p.sources, func(s source) bool { return s.registry })].url}}
	}
	p.NeedsRoots = p.NeedsRoots || d.java
	return p, nil
}

// registryURL returns a registry's URL with a trailing slash and without
// credentials: programs don't get the host's.
func registryURL(s string) (string, error) {
	u, err := url.Parse(strings.TrimPrefix(s, "sparse+"))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return "", errors.New("it is not a valid http or https URL") // which may have credentials
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return strings.TrimSuffix(u.String(), "/") + "/", nil
}

// Kind returns how a URL of the preset is cached, and false if it isn't.
func (p *Preset) Kind(t rule.Target) (cache.Kind, bool) {
	for _, s := range p.sources {
		base, err := rule.ParseTarget(s.url)
		if err != nil || s.kind == nil || base.Origin != t.Origin {
			continue
		}
		if path, ok := strings.CutPrefix(t.Path, strings.TrimSuffix(base.Path, "/")+"/"); ok && t.Query == "" {
			kind := s.kind(path)
			return kind, kind != ""
		}
	}
	return "", false
}

// NewGit returns the git preset, for fetching from and pushing to the repositories
// at or below the URLs of o. It rewrites the ssh forms of their addresses to https.
func NewGit(o Options) (*Preset, error) {
	p := &Preset{Name: "git", NeedsRoots: true}
	var config [][2]string
	for i, raw := range slices.Concat(o.Fetch, o.Push) {
		r, err := rule.ParseGit(raw, i >= len(o.Fetch))
		if err != nil {
			return nil, err
		}
		p.Rules = append(p.Rules, r)
		t, err := rule.ParseTarget(raw)
		if err != nil {
			return nil, err
		}
		own := t.String()
		path := strings.TrimPrefix(t.Path, "/")
		if t.Port == 443 { // the port of ssh says nothing about the port of https
			for _, form := range []string{"git@" + t.Host + ":" + path, "ssh://git@" + t.Host + "/" + path, "git://" + t.Host + "/" + path} {
				config = append(config, [2]string{"url." + own + ".insteadOf", form})
			}
		}
		if o.GitHeader != nil {
			if header, ok := o.GitHeader(raw); ok {
				config = append(config, [2]string{"http." + own + ".extraHeader", header})
			}
		}
	}
	p.Env = append(p.Env, "GIT_TERMINAL_PROMPT=0", fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(config)))
	for i, c := range config {
		p.Env = append(p.Env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, c[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, c[1]))
	}
	return p, nil
}

// Merge returns presets as one, without a name.
func Merge(list ...*Preset) *Preset {
	sum := &Preset{Files: map[string]string{}}
	for _, p := range list {
		sum.Rules = append(sum.Rules, p.Rules...)
		sum.Env = append(sum.Env, p.Env...)
		sum.Mirrors = append(sum.Mirrors, p.Mirrors...)
		sum.sources = append(sum.sources, p.sources...)
		sum.NeedsRoots = sum.NeedsRoots || p.NeedsRoots
		sum.NeedsJavaRoots = sum.NeedsJavaRoots || p.NeedsJavaRoots
		maps.Copy(sum.Files, p.Files)
	}
	return sum
}

// Environment returns Env with the directory of the files. It keeps
// [ProxyPlaceholder].
func (p *Preset) Environment(files string) []string {
	env := slices.Clone(p.Env)
	for i, v := range env {
		env[i] = strings.ReplaceAll(v, FilesPlaceholder, files)
	}
	return env
}

// Digest returns the digest of a file of the preset, from an index in the cache, or
// the zero value.
func (p *Preset) Digest(c *cache.Cache, t rule.Target) cache.Digest {
	for _, find := range []func(*cache.Cache, rule.Target, []source) cache.Digest{digestNPM, digestPip, digestCargo} {
		if d := find(c, t, p.sources); d != (cache.Digest{}) {
			return d
		}
	}
	return cache.Digest{}
}
