package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTable holds the table of specs and its exceptions together.
func TestTable(t *testing.T) {
	for i, s := range specs {
		if s.limit == 0 {
			t.Errorf("%s has no limit", s.name)
		}
		for _, other := range specs[:i] {
			if s.name == other.name || strings.Contains(s.text, other.text) || strings.Contains(other.text, s.text) {
				t.Errorf("%s and %s are the same", s.name, other.name)
			}
		}
	}
	for i, e := range exceptions {
		s := slices.IndexFunc(specs, func(s spec) bool { return s.name == e.spec })
		v := slices.IndexFunc(variants, func(v variant) bool { return v.name == e.variant })
		if s < 0 || v < 0 {
			t.Errorf("there is no %s in %s", e.spec, e.variant)
			continue
		}
		if variants[v].onlyLocal && !specs[s].asksForLocal {
			t.Errorf("%s does not run %s", e.variant, e.spec)
		}
		if e.why == "" {
			t.Errorf("%s, %s: no reason", e.variant, e.spec)
		}
		if _, err := regexp.Compile(e.message); err != nil {
			t.Errorf("%s, %s: %v", e.variant, e.spec, err)
		}
		if e.isSlow && e.message == "" {
			t.Errorf("%s, %s is left out, but can pass", e.variant, e.spec)
		}
		for _, other := range exceptions[:i] {
			if e.spec == other.spec && e.variant == other.variant &&
				(e.family == "" || other.family == "" || e.family == other.family) {
				t.Errorf("%s, %s: two exceptions", e.variant, e.spec)
			}
		}
	}
}

// TestReadme holds the page against the table of exceptions: it says why each is one.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if !strings.Contains(string(text), "| "+s.name+" |") {
			t.Errorf("README.md has no results of %q", s.name)
		}
	}
	for _, v := range variants {
		if !strings.Contains(string(text), "`"+v.name+"`") {
			t.Errorf("README.md does not name the variant %s", v.name)
		}
	}
}

func TestChooseJobs(t *testing.T) {
	all := regexp.MustCompile("")
	names := func(jobs []job) []string {
		var all []string
		for _, j := range jobs {
			all = append(all, j.column()+": "+j.spec.name)
		}
		return all
	}
	local := chooseJobs(choice{[]string{variantLocal}, []string{familyIPv4}, all})
	if len(local) != len(specs) {
		t.Errorf("local: %d of %d specs", len(local), len(specs))
	}
	if !slices.IsSortedFunc(local, func(a, b job) int { return int(b.limit() - a.limit()) }) {
		t.Errorf("the longest is not first: %q", names(local))
	}
	for _, j := range chooseJobs(choice{[]string{variantAllowLocal}, families, all}) {
		if !j.spec.asksForLocal {
			t.Errorf("allow-local runs %s", j.spec.name)
		}
	}
	some := chooseJobs(choice{
		[]string{variantVirtual, variantAllowLocal}, families, regexp.MustCompile("only nodes|finalizer"),
	})
	want := []string{
		"virtual ipv4: cleanup finalizer", "virtual dual: cleanup finalizer",
		"allow-local ipv4: policy Local, only nodes with endpoints",
		"allow-local dual: policy Local, only nodes with endpoints",
		"virtual ipv4: policy Local, only nodes with endpoints", "virtual dual: policy Local, only nodes with endpoints",
	}
	if got := names(some); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	cannot := map[string]bool{}
	for _, j := range some {
		cannot[j.column()+j.spec.name[:6]] = j.exception.message != ""
	}
	if !cannot["virtual ipv4policy"] || cannot["virtual dualpolicy"] {
		t.Errorf("exceptions of families: %v", cannot)
	}
}

func TestParseChoice(t *testing.T) {
	for _, test := range []struct{ variants, families, focus, want string }{
		{"local,virtual", "dual", "affinity", ""},
		{"local,cloud", "dual", "", `there is no variant "cloud": want some of local,allow-local,virtual`},
		{"", "dual", "", `there is no variant "": want some of local,allow-local,virtual`},
		{"local", "ipv6", "", `there is no family "ipv6": want some of ipv4,dual`},
		{"local", "ipv4", "(", "-focus: error parsing regexp: missing closing ): `(`"},
	} {
		_, err := parseChoice(test.variants, test.families, test.focus)
		if got := errorText(err); got != test.want {
			t.Errorf("%q %q %q: %q, want %q", test.variants, test.families, test.focus, got, test.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// report is a JUnit report as the tests' framework writes it, with one case of a status.
func report(status, content string) string {
	return `<testsuites><testsuite name="suite">
	<testcase name="[BeforeSuite]" status="passed" time="0.1"></testcase>
	<testcase name="[It] another" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
	<testcase name="[It] this one" status="` + status + `" time="7.25">` + content + `</testcase>
	</testsuite></testsuites>`
}

func TestJudge(t *testing.T) {
	plain := job{spec: specs[0], variant: variants[0], family: familyIPv4}
	cannot := plain
	cannot.exception = exception{message: "NodePort was not", why: "it cannot"}
	failure := `<failure type="failed">` + "\n[FAILED] NodePort was not allocated\nIn [It] at: x.go:1\n" + `</failure>`
	rolling := "Load Balancer total HTTP requests: 100\nNetwork errors: 2\nHTTP errors: 1\nLoad Balancer total HTTP " +
		"requests: 50\nNetwork errors: 0\nHTTP errors: 0\n"
	for _, test := range []struct {
		name   string
		job    job
		report string
		log    string
		want   string
		bad    bool
	}{
		{"passes", plain, report("passed", ""), "", "pass 7", false},
		{"fails", plain, report("failed", failure), "", "FAIL 7", true},
		{"fails as it must", cannot, report("failed", failure), "", "cannot 7", false},
		{"fails otherwise", cannot, report("timedout", `<error>timeout</error>`), "", "FAIL 7", true},
		{"passes, but must fail", cannot, report("passed", ""), "", string(passedStrange) + " 7", true},
		{
			"skips itself", plain, report("skipped", `<skipped message="skipped - needs 2 nodes"></skipped>`), "", "FAIL 7",
			true,
		},
		{"rolling update", plain, report("passed", ""), rolling, "pass 7, 3 of 150 lost", false},
	} {
		parsed, err := parseReport([]byte(test.report))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got := judge(test.job, parsed, test.log)
		if got.cell() != test.want || got.verdict.isBad() != test.bad || got.took != 7250*time.Millisecond {
			t.Errorf(
				"%s: %q (%s), bad %t; want %q, %t", test.name, got.cell(), got.took, got.verdict.isBad(), test.want, test.bad,
			)
		}
	}
	for name, bad := range map[string]string{
		"no XML": "-", "none ran": report("skipped", `<skipped message="skipped"></skipped>`),
	} {
		if got, err := parseReport([]byte(bad)); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFormat(t *testing.T) {
	results := []result{
		{job: job{spec: specs[0], variant: variants[0], family: familyIPv4}, verdict: passed, took: time.Second},
		{
			job: job{spec: specs[0], variant: variants[2], family: familyDual}, verdict: failed, took: 2 * time.Second,
			message: "no answer",
		},
		{job: job{spec: specs[7], variant: variants[0], family: familyIPv4, exception: exceptions[0]}, verdict: leftOut},
	}
	want := `| spec | local ipv4 | virtual dual |
|---|---|---|
| change type and ports, TCP | pass 1 | FAIL 2 |
| cleanup finalizer | left out |  |
`
	if got := formatTable(results); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	want = `FAIL: virtual dual, change type and ports, TCP: no answer
left out: local ipv4, cleanup finalizer: ` + finalizer + `
1 passed, 0 cannot pass and did not, 1 left out, 1 not as expected
`
	if got := formatNotes(results); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestUnlistedSpecs(t *testing.T) {
	names := []string{"[It] [sig-network] LoadBalancers " + specs[0].text + " [Slow]", "[It] something new"}
	if got := unlistedSpecs(names); len(got) != 1 || got[0] != names[1] {
		t.Errorf("%q", got)
	}
}

func TestRest(t *testing.T) {
	var used, announces, restarted, calm restObject
	used.Status.AllocatedIPv6 = 1
	announces.Kind, announces.Spec.Addresses = "Announcement", append(announces.Spec.Addresses, []byte("{}"))
	restarted.Status.ContainerStatuses = append(restarted.Status.ContainerStatuses, struct{ RestartCount int }{2})
	if got := restarted.restarts(); got != 2 {
		t.Errorf("%d restarts, want 2", got)
	}
	for _, test := range []struct {
		object restObject
		want   string
	}{
		{used, "has 1 addresses in use"}, {announces, "announces 1 addresses"}, {calm, ""},
	} {
		if got := test.object.problem(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
