package preset

import (
	"path"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/caisson-run/caisson/tools/egress/cache"
)

// source is a URL below which a preset reads.
type source struct {
	url     string
	methods []string // nil means GET and HEAD
	// kind returns how a path below url is cached, "" if it isn't. Nil caches
	// nothing.
	kind func(path string) cache.Kind
	// registry reports whether the user's own registry replaces it.
	registry bool
}

// data is a preset's row in the table. Its first source is the registry.
type data struct {
	name    string
	sources []source
	env     []string
	files   map[string]string
	mirror  string // path of the proxy that stands for the registry
	java    bool
	// configure makes programs use the user's own registries. It is nil if the
	// mirror is enough, or if the program can't be made to.
	configure func(p *Preset, own []Registry)
	// offline are patterns for what programs print when they need a registry and
	// have no network. They match whole phrases: parts also occur in files and logs
	// that a command shows.
	offline []string
}

var table = []data{
	{
		// A proxy serves the checksum database below /sumdb/, and go.sum and go.mod hold
		// no address of a proxy (Go Modules Reference, Go 1.26). Requests to loopback
		// addresses never use HTTP_PROXY (package golang.org/x/net/http/httpproxy).
		name:    "go",
		sources: []source{{url: "https://proxy.golang.org/", kind: kindGo, registry: true}},
		env:     []string{"GOPROXY=" + ProxyPlaceholder + "/go"},
		mirror:  "/go/",
		offline: []string{`: module lookup disabled by GOPROXY=off$`, `: reading file:///[^\s\\]+/@v/`, `dial tcp: lookup (proxy|sum)\.golang\.org`},
	},
	{
		// npm audit posts the list of packages to /-/npm/v1/security/, and lock files hold
		// the registry's address (npm Docs, npm 11). The setting cafile overrides
		// NODE_EXTRA_CA_CERTS (tried with npm 11.19).
		name: "npm",
		sources: []source{
			{url: "https://registry.npmjs.org/", kind: kindNPM, registry: true},
			{url: "https://registry.npmjs.org/-/npm/v1/security/", methods: []string{"POST"}, registry: true},
			{url: "https://registry.yarnpkg.com/", kind: kindNPM, registry: true}, // another name of it
		},
		env:       []string{"npm_config_update_notifier=false", "npm_config_fund=false"},
		configure: configureNPM,
		offline:   []string{`^npm (error|ERR!) code ENOTCACHED`, `^\s*ERR_PNPM_NO_OFFLINE_`, `getaddrinfo (ENOTFOUND|EAI_AGAIN) registry\.`},
	},
	{
		// Links of an index have the digest of their file (PyPA, Simple repository API
		// 1.1). PIP_CERT and REQUESTS_CA_BUNDLE name the roots (pip documentation, 23.2).
		name: "pip",
		sources: []source{
			{url: "https://pypi.org/simple/", kind: kindIndex, registry: true},
			{url: "https://pypi.org/pypi/", kind: kindIndex},
			{url: "https://files.pythonhosted.org/packages/", kind: kindPyFile},
		},
		env:       []string{"PIP_DISABLE_PIP_VERSION_CHECK=1"},
		configure: configurePip,
		offline:   []string{`^ERROR: No matching distribution found for `, `Because [\w.-]+ was not found in the cache and you require `, `Network connectivity is disabled, but \w`},
	},
	{
		// The sparse protocol is the default since 1.70, each line of an index has the
		// SHA-256 of a crate, and CARGO_HTTP_CAINFO names the roots (The Cargo Book, 1.95).
		name: "cargo",
		sources: []source{
			{url: "https://index.crates.io/", kind: kindIndex, registry: true},
			{url: "https://static.crates.io/crates/", kind: kindCrate},
			{url: "https://crates.io/api/v1/crates/"},
		},
		env:     []string{"CARGO_REGISTRIES_CRATES_IO_PROTOCOL=sparse", "CARGO_NET_GIT_FETCH_WITH_CLI=true"},
		offline: []string{`As a reminder, you're using offline mode \(`, `attempting to make an HTTP request, but \W+\w+ was specified`},
	},
	{
		// Maven 3.9 and later read MAVEN_ARGS, older ones need -s (Configuring Apache
		// Maven). The block of http repositories is a mirror, and mirrors of the user's
		// settings come first (Guide to Mirror Settings, 3.8). Java has its own trust store
		// (JSSE Reference Guide, Java 17).
		name: "maven",
		sources: []source{
			{url: "https://repo.maven.apache.org/maven2/", kind: kindMaven, registry: true},
			{url: "https://repo1.maven.org/maven2/", kind: kindMaven},
			{url: "https://plugins.gradle.org/m2/", kind: kindMaven},
		},
		env:     []string{"MAVEN_ARGS=-s " + FilesPlaceholder + "/settings.xml"},
		files:   map[string]string{"settings.xml": mavenSettings},
		mirror:  "/maven/",
		java:    true,
		offline: []string{`Cannot access \S+ \(.+\) in offline mode and the artifact `},
	},
	{
		// apt creates a state directory whose last part is apt (tried with apt 2.6, without
		// privileges). Packages are signed, so http suffices (apt-secure(8)).
		name: "apt",
		sources: []source{
			{url: "http://deb.debian.org/debian/", kind: kindApt, registry: true},
			{url: "http://deb.debian.org/debian-security/", kind: kindApt, registry: true},
			{url: "http://security.debian.org/", kind: kindApt, registry: true},
			{url: "http://archive.ubuntu.com/ubuntu/", kind: kindApt, registry: true},
			{url: "http://security.ubuntu.com/ubuntu/", kind: kindApt, registry: true},
			{url: "http://ports.ubuntu.com/", kind: kindApt, registry: true},
		},
		env:     []string{"APT_CONFIG=" + FilesPlaceholder + "/apt.conf"},
		files:   map[string]string{"apt.conf": aptConfig},
		offline: []string{`^(W: Failed to fetch .*|E: Failed to fetch .*|\s+)Temporary failure resolving '`},
	},
}

const mavenSettings = `<?xml version="1.0" encoding="UTF-8"?>
<settings>
  <mirrors>
    <mirror>
      <id>caisson</id>
      <mirrorOf>*</mirrorOf>
      <url>${env.HTTP_PROXY}/maven</url>
    </mirror>
  </mirrors>
</settings>
`

// aptConfig makes apt keep its state where everybody can write. apt can then
// download and unpack, but not install, which needs root.
const aptConfig = `Dir::State "/tmp/apt/";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "/tmp/apt/";
APT::Sandbox::User "";
Acquire::Languages "none";
`

func kindIndex(string) cache.Kind { return cache.Index }

// kindGo returns the kind of a GOPROXY URL. URLs with a version are immutable.
// Lists and queries for branches are not.
func kindGo(p string) cache.Kind {
	if rest, ok := strings.CutPrefix(p, "sumdb/"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		if strings.HasPrefix(rest, "tile/") || strings.HasPrefix(rest, "lookup/") {
			return cache.File
		}
		return cache.Index
	}
	_, file, ok := strings.Cut(p, "/@v/")
	ext := path.Ext(file)
	if ok && (ext == ".info" || ext == ".mod" || ext == ".zip") && semver.Canonical(strings.TrimSuffix(file, ext))+semver.Build(strings.TrimSuffix(file, ext)) == strings.TrimSuffix(file, ext) {
		return cache.File
	}
	return cache.Index
}

// kindNPM returns the kind of an npm registry's URL. Nothing below /-/ is kept: it
// is about users.
func kindNPM(p string) cache.Kind {
	switch {
	case strings.HasPrefix(p, "-/"):
		return ""
	case strings.Contains(p, "/-/") && strings.HasSuffix(p, ".tgz"):
		return cache.File
	}
	return cache.Index
}

func kindPyFile(string) cache.Kind { return cache.File }

func kindCrate(p string) cache.Kind {
	if strings.HasSuffix(p, ".crate") || strings.HasSuffix(p, "/download") {
		return cache.File
	}
	return ""
}

func kindMaven(p string) cache.Kind {
	if strings.HasPrefix(path.Base(p), "maven-metadata") || strings.Contains(p, "-SNAPSHOT") || strings.HasSuffix(p, "/") {
		return cache.Index
	}
	return cache.File
}

func kindApt(p string) cache.Kind {
	if strings.Contains(p, "/by-hash/") || strings.HasPrefix(p, "pool/") || strings.Contains(p, "/pool/") {
		return cache.File
	}
	return cache.Index
}
