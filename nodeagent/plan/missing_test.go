package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

func TestStillMissing(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	named := func(name string, addresses ...purelbv1.AnnouncedAddress) Asking {
		return Asking{Name: name, Addresses: addresses}
	}
	full := func(name string) Asking { return named(name, local("192.0.2.1", 24)) }
	list := func(asking ...Asking) []Asking { return asking }
	since := func(name string, ago time.Duration) Missing { return Missing{full(name), now.Add(-ago)} }
	for name, c := range map[string]struct {
		were    []Asking
		missing []Missing
		are     []Asking
		want    []string
	}{
		"nothing":                   {},
		"the first look":            {are: list(full("a"))},
		"all are there":             {were: list(full("a")), are: list(full("a"))},
		"one is deleted":            {were: list(full("a"), full("b")), are: list(full("a")), want: []string{"b 0s"}},
		"one that was empty is":     {were: list(full("a"), named("b")), are: list(full("a"))},
		"one that was common is":    {were: list(full("a"), Asking{Name: "b", Common: true}), are: list(full("a")), want: []string{"b 0s"}},
		"all are deleted":           {were: list(full("a"), full("b")), want: []string{"a 0s", "b 0s"}},
		"one still is":              {were: list(full("a")), missing: []Missing{since("b", time.Second)}, are: list(full("a")), want: []string{"b 1s"}},
		"one is back":               {were: list(full("a")), missing: []Missing{since("b", time.Second)}, are: list(full("a"), named("b"))},
		"one has been for long":     {were: list(full("a")), missing: []Missing{since("b", missingFor)}, are: list(full("a"))},
		"the clock was set back":    {were: list(full("a")), missing: []Missing{since("b", -time.Hour)}, are: list(full("a"))},
		"one after another is gone": {were: list(full("a"), full("b")), missing: []Missing{since("c", time.Second)}, are: list(full("a")), want: []string{"b 0s", "c 1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, m := range StillMissing(c.were, c.missing, c.are, now) {
				got = append(got, m.Name+" "+now.Sub(m.Since).String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
