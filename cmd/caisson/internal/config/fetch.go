package config

import (
	"reflect"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// FetchRules are origins and path prefixes. See [rule.ParseFetch].
type FetchRules []string

// setText parses the value of a flag: rules separated by commas.
func (r *FetchRules) setText(text string) error {
	out := FetchRules{}
	for s := range strings.SplitSeq(text, ",") {
		allowed, err := rule.ParseFetch(strings.TrimSpace(s))
		if err != nil {
			return err
		}
		out = append(out, allowed.String())
	}
	*r = out
	return nil
}

// narrowTo bounds f by b, which is from where. Its error is an [Error].
func (f *Fetch) narrowTo(where string, b FetchBounds) error {
	if b.Allow != nil {
		own, err := parseRules("fetch.allow", f.Allow)
		if err != nil {
			return err
		}
		most, err := parseRules(where+": fetch.allow", b.Allow)
		if err != nil {
			return err
		}
		f.Allow = FetchRules{}
		for _, r := range rule.IntersectFetch(own, most) {
			f.Allow = append(f.Allow, r.String())
		}
	}
	if valueOr(b.RefusePrivate, false) && (len(f.Private) > 0 || f.Proxy != nil) {
		return &Error{Where: where, Message: "fetch.private and fetch.proxy are not allowed on this machine", Hint: "take them out; only public addresses are fetched from"}
	}
	tightenValue(reflect.ValueOf(&f.FetchLimits).Elem(), reflect.ValueOf(b.FetchLimits))
	return nil
}

func parseRules(where string, list []string) ([]rule.Rule, error) {
	out := make([]rule.Rule, 0, len(list))
	for _, s := range list {
		r, err := rule.ParseFetch(s)
		if err != nil {
			return nil, &Error{Where: where, Item: s, Message: err.Error(), Hint: "write origins and paths, such as https://docs.example.com/guide/"}
		}
		out = append(out, r)
	}
	return out, nil
}

// FetchOptions returns the checked options of the fetch tool.
func (c *Config) FetchOptions() (runner.FetchOptions, error) {
	o, err := c.Fetch.parseOptions(c.Egress.Deny)
	return o, c.addPlace(err)
}

// parseOptions returns the checked options. Hosts of denied are denied too.
func (f *Fetch) parseOptions(denied EgressRules) (runner.FetchOptions, error) {
	o := runner.FetchOptions{
		MaxBytes: int64(valueOr(f.MaxBytes, 0)), Timeout: time.Duration(valueOr(f.Timeout, 0)), Egress: limits.DefaultEgressBudget(),
	}
	o.Egress.Bytes = int64(valueOr(f.SessionBytes, Size(o.Egress.Bytes)))
	o.Egress.Hosts = int64(valueOr(f.SessionHosts, Count(o.Egress.Hosts)))
	var err error
	if o.Allow, err = parseRules("fetch.allow", f.Allow); err != nil {
		return o, err
	}
	if o.Deny, err = denied.parseAll("egress.deny"); err != nil {
		return o, err
	}
	if o.Private, err = parsePrivate("fetch", f.Private); err != nil {
		return o, err
	}
	if f.Proxy != nil {
		o.Proxy, err = parseProxy("fetch.proxy", *f.Proxy)
	}
	return o, err
}
