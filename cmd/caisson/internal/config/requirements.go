package config

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// applyRequirements tightens the settings to the requirements. It refuses choices that
// they don't allow.
func (c *Config) applyRequirements() error {
	r := c.Requirements
	if err := c.checkChoices(); err != nil {
		return err
	}
	c.Mode = cmp.Or(c.Mode, new("bind"))
	c.Isolation = cmp.Or(c.Isolation, new("auto"))
	c.CacheUse = cmp.Or(c.CacheUse, new("writable"))
	tightenValue(reflect.ValueOf(&c.Bounds).Elem(), reflect.ValueOf(r.Bounds))
	return cmp.Or(c.Fetch.narrowTo("requirements", r.Fetch), c.Egress.narrowTo("requirements", r.Egress))
}

// checkChoices refuses a choice that the requirements don't allow.
func (c *Config) checkChoices() error {
	r := c.Requirements
	forbidden := func(key, got string) error {
		return &Error{
			Where: "requirements", Message: cmp.Or(c.origins.flagOrVariable(key, got), key) + " " + got + " is not allowed on this machine",
			Hint: "choose what the administrator's file allows",
		}
	}
	backend, image := *c.Backend, *c.Image
	switch {
	case backend != "auto" && r.Backends != nil && !slices.Contains(r.Backends, backend):
		return forbidden("backend", backend)
	case !r.AllowsImage(image):
		return forbidden("image", image)
	case r.RefuseCallerOwnsFiles && *c.CallerOwnsFiles:
		return forbidden("caller_owns_files", "true")
	case r.RefuseSystemWorkspace && *c.AcceptSystemWorkspace:
		return forbidden("accept_system_workspace", "true")
	case r.RefuseWritableRoot && *c.WritableRoot:
		return forbidden("writable_root", "true")
	}
	for _, name := range c.EnvFrom {
		if !allows(r.EnvFrom, name) {
			return forbidden("env_from", name)
		}
	}
	for _, m := range c.Mounts {
		if !allowsBelow(r.Mounts, *m.From, c.home) || !m.isReadOnly() && !allowsBelow(r.WritableMounts, *m.From, c.home) {
			return forbidden("mounts", *m.From)
		}
	}
	for _, dir := range c.HostImage.Toolchains {
		if !allowsBelow(r.Mounts, dir, c.home) {
			return forbidden("host_image.toolchains", dir)
		}
	}
	for _, name := range sortedKeys(c.Agents) {
		if dir := c.Agents[name].Dir; dir != nil && !allowsBelow(r.Mounts, *dir, c.home) {
			return forbidden(joinKey("agents", name)+".dir", *dir)
		}
	}
	have, want := reflect.ValueOf(c.Bounds), reflect.ValueOf(r.Bounds)
	for _, f := range fieldsOf(have.Type()) {
		v, bound := have.FieldByIndex(f.index), want.FieldByIndex(f.index)
		if f.typ == reflect.TypeFor[*string]() && !v.IsNil() && !bound.IsNil() && f.isMilder(v, bound) && !c.IsBuiltin(f.name) {
			return forbidden(f.name, wordOf(v))
		}
	}
	return nil
}

// AllowsVariable reports whether a variable of this machine may be passed on.
func (r Requirements) AllowsVariable(name string) bool { return allows(r.EnvFrom, name) }

// AllowsImage reports whether an image is allowed as it is written. Check the name as
// configured and the parsed reference: rootfs:/base/../home is not below /base.
func (r Requirements) AllowsImage(image string) bool {
	return allows(r.Images, image)
}

// allows reports whether a pattern matches s. nil allows anything.
func allows(patterns []string, s string) bool {
	return patterns == nil || slices.ContainsFunc(patterns, func(allowed string) bool { return matchesPattern(allowed, s) })
}

// allowsBelow reports whether a directory is at or below one of dirs, after resolving
// symlinks. nil allows any.
func allowsBelow(dirs []string, dir, home string) bool {
	path, err := resolveFolder(dir, home)
	return dirs == nil || err == nil && slices.ContainsFunc(dirs, func(allowed string) bool {
		top, err := resolveFolder(allowed, home)
		return err == nil && (top == "/" || path == top || strings.HasPrefix(path, top+"/"))
	})
}

func matchesPattern(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(s, prefix)
	}
	return pattern == s
}

func valueOr[T any](v *T, def T) T {
	if v == nil {
		return def
	}
	return *v
}
