package docs_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// walk is what an address passes through, in order. A heading says what a part of the walk writes of which object, each
// of which a function of the part names; a line after # is text, in which functions stand in braces. A function is
// called by the one that it is indented below: by its name, as a value, or by way of an interface.
const walk = `
Admission: a ServiceGroup is checked and stored; from ServiceGroup to ServiceGroup
webhooks.serviceGroupValidator.ValidateCreate
	allocation.Admission.AdmitCreate
		allocation.Admission.judge
			allocation.acceptedGroups.judge
				allocation.ParseGroup

Allocation: a Service gets the address; from ServiceGroup to LoadBalancerIngress
controllers.ServiceReconciler.Reconcile
	controllers.ServiceReconciler.allocateOrRelease
		controllers.allocationInputs
			allocation.NewCatalog
		controllers.serviceIndex.allocate
			allocation.Allocate
				allocation.decision.allocate
					allocation.decision.allocateFamilies
						allocation.decision.chooseGroup
						allocation.decision.allocateFamily
							allocation.decision.fillSlot
								allocation.decision.fillWithAny
									allocation.decision.freeAddress
										allocation.decision.firstFree
		controllers.ServiceReconciler.applyResult
			controllers.ServiceReconciler.write
				controllers.applyServiceStatus

Placement: a node is elected, and is told so; from Service to Announcement
controllers.PlacementReconciler.Reconcile
	controllers.gatherCluster
	controllers.cluster.placementInputs
		controllers.cluster.placementAddresses
			allocation.AddressesToAnnounce
	placement.Place
		placement.placer.typeOf
		placement.placer.placeVirtual
		placement.placer.phaseOf
		placement.placer.placeLocal
			placement.placer.placeUnheld
				placement.placer.electNode
				placement.placer.keepEntry
	controllers.PlacementReconciler.writeAnnouncements
		controllers.PlacementReconciler.planNodes
			controllers.PlacementReconciler.planNode
				placement.Slice
		controllers.PlacementReconciler.writeAnnouncement
			controllers.PlacementReconciler.putAnnouncement

Realisation: the node's agent changes the kernel, and reports; from Announcement to AnnouncementStatus
nodeagent.Agent.Start
	nodeagent.Agent.syncWoken
		nodeagent.Agent.readObjects
		nodeagent.Agent.sync
			nodeagent.Agent.gather
				link.Netlink.Observe
			plan.Decide
				plan.decisionSteps
					plan.decisionBuilder.compare
						plan.MergeDesired
						plan.Diff
					plan.decisionBuilder.addByAnswers
			nodeagent.Agent.apply
				nodeagent.decisionApplier.applyOperation
					nodeagent.decisionApplier.add
						link.Netlink.Add
						nodeagent.announcer.schedule
				nodeagent.prober.ask
			plan.Conclude
				plan.statuses
					plan.Status
			nodeagent.Agent.report
				nodeagent.reporter.setStatuses
					report.Reporter.Set
report.Reporter.Start
	report.Reporter.WriteDue
		report.Reporter.apply

Report: the Service says that the address is announced; from Announcement to ConditionAnnounced
controllers.AnnouncedReconciler.Reconcile
	controllers.AnnouncedReconciler.placesOf
		announced.PlacesOf
	announced.Summarise
		announced.announcedCondition
	controllers.AnnouncedReconciler.writeReport
		controllers.applyServiceStatus

Move: a Local address goes from one node to another; from Lease to Announcement
# A Local address moves for one of these causes, if another node may have it:
#
# | cause | read by | asked by |
# |---|---|---|
# | the holder's Lease expires | {controllers.LivenessTracker.livenessBy} | {placement.leaseExpired} |
# | its Node is deleted | {controllers.cluster.placementInputs} | {placement.nodeGone} |
# | its Node loses the label of its LBNodeAgent | {controllers.cluster.placementNode} | {placement.noAgent} |
# | its LBNodeAgent does not select it | {agents.TurnsOf} | {placement.leavingAgent} |
# | it is excluded by its label | {controllers.cluster.placementNode} | {placement.excluded} |
# | it has the taint out-of-service | {controllers.cluster.placementNode} | {placement.outOfService} |
# | it is shutting down | {controllers.cluster.placementNode} | {placement.shuttingDown} |
# | it is cordoned, and its LBNodeAgent says HandOver | {controllers.isUnschedulable} | {placement.cordoned} |
# | it is annotated to hand the address over | {controllers.addressToHandOver} | {placement.askedToHandOver} |
# | no interface of it in the subnet has carrier | {controllers.addReportedFacts} | {placement.offSubnetIfReported} |
# | only others have endpoints | {controllers.listEndpointNodes} | {placement.noEndpointForLocalAddressThoughAnyHas} |
# | a successor claims the address | {controllers.cluster.successorClaims} | {placement.placer.phaseByClaim} |
# | its agent has yielded the address, or has failed | {controllers.addEntries} | {placement.stepOf} |
#
# How long the manager waits in each case is in [placement](reference/placement.md#how-long-a-node-is-waited-for). Then
# it elects another node. Of a holder that is alive it first marks the entry as handed over, and adds the entry of the
# other node once the holder's agent has seen that.
controllers.LivenessTracker.observeLease
controllers.LivenessTracker.Start
	controllers.LivenessTracker.SignalChanges
		controllers.LivenessTracker.signalChange
			controllers.LivenessTracker.livenessBy
controllers.PlacementReconciler.Reconcile
	placement.Place
		placement.placer.phaseOf
		placement.placer.placeLocal
			placement.placer.moveLocal
				placement.placer.chooseNext
				placement.placer.mayTakeOver
				placement.placer.noteMove
				placement.placer.keepEntry
				placement.withHighestEpoch
	controllers.PlacementReconciler.writeAnnouncements
# The holder's agent goes on answering for an address that is handed over, and does not defend it any more.
nodeagent.Agent.sync
	nodeagent.defender.setHeld
		plan.Defence.SetHeld
# The agent of the other node adds the address, and announces it (see Realisation). The holder's agent hears that, asks
# the other node by itself, and withdraws the address when it answers. The manager takes the holder's entry away when
# the other node reports the address as Announced.
nodeagent.defender.hear
	plan.Defence.Hear
		plan.Judge
		plan.Defence.reactionTo
			plan.Defence.NoteYield
	nodeagent.defender.carryOut
		nodeagent.defender.withdrawYielded
			link.Netlink.Remove

End: a Service is deleted, its address is released and withdrawn; from Service to AnnouncedAddress
# An address is free as soon as the Service is deleted. From a Service that PureLB does not serve any more it is taken.
controllers.ServiceReconciler.Reconcile
	controllers.ServiceReconciler.reconcileMissing
		controllers.serviceIndex.remove
			allocation.InUse.Delete
		ipam.Broker.DropRequests
			ipam.Broker.dropRequest
				ipam.Broker.addRelease
		controllers.ServiceReconciler.recordReleasesOfDeleted
	controllers.ServiceReconciler.allocateOrRelease
		controllers.ServiceReconciler.release
			controllers.ServiceReconciler.write
# The Announcements of the nodes lose the entry, as no Service has the address.
controllers.PlacementReconciler.Reconcile
	controllers.cluster.placementInputs
		controllers.cluster.placementAddresses
	placement.Place
	controllers.PlacementReconciler.writeAnnouncements
		controllers.PlacementReconciler.planNodes
			controllers.PlacementReconciler.planNode
				placement.Slice
		controllers.PlacementReconciler.writeAnnouncement
			controllers.PlacementReconciler.putAnnouncement
# The agents withdraw what no entry asks for any more. Until then no other node is given the address.
nodeagent.Agent.sync
	plan.Decide
		plan.decisionSteps
			plan.decisionBuilder.compare
				plan.Diff
					plan.findOurs
			plan.decisionBuilder.withdrawNothing
	nodeagent.Agent.apply
		nodeagent.decisionApplier.applyOperation
			nodeagent.decisionApplier.withdraw
				nodeagent.decisionApplier.remove
					link.Netlink.Remove
	plan.Conclude
	nodeagent.Agent.report
`

const (
	walkFile  = "walk.md"
	walkIntro = `# The walk of an address

What an address passes through from a ServiceGroup to the kernel of a node, and back to the condition Announced of its
Service; then what happens when a Local address moves, and when its Service ends. These are the functions of the code,
in order. A function is called by the one that it is indented below; one that stands at the margin begins when an
object, or the link, has changed. Between two parts there is the API server: the first part writes an object that the
next one reads.

This page is written by "go test ./docs -run TestWalk -update", which fails where a function is not there any more,
or is not called by the one above it.
`
)

// placeholder is a function that a text of the walk names.
var placeholder = regexp.MustCompile(`\{[\w.]+\}`)

// TestWalk holds docs/walk.md, and the list that it is written from, against the code.
func TestWalk(t *testing.T) {
	code := readWalkPackages(t)
	page := walkIntro
	for _, part := range strings.Split(strings.TrimSpace(walk), "\n\n") {
		heading, steps, _ := strings.Cut(part, "\n")
		title, objects, _ := strings.Cut(heading, "; from ")
		from, to, _ := strings.Cut(objects, " to ")
		page += fmt.Sprintf("\n## %s\n", title)
		mentioned := map[string]bool{}
		code.beginPart()
		var callers []*function
		wasText, isFirst := false, true
		for line := range strings.Lines(steps) {
			name := strings.TrimSpace(line)
			text, isText := strings.CutPrefix(name, "#")
			if isFirst || isText != wasText {
				page += "\n"
			}
			if wasText, isFirst = isText, false; isText {
				page += placeholder.ReplaceAllStringFunc(strings.TrimSpace(text), func(named string) string {
					named = strings.Trim(named, "{}")
					return fmt.Sprintf("[`%s`](../%s)", named, code.find(t, named).file)
				}) + "\n"
				continue
			}
			depth := strings.Count(line, "\t")
			step := code.find(t, name)
			if depth > 0 && !callers[depth-1].callsNext(step) {
				t.Errorf("%s does not call %s, or calls it before the one before it in the list", callers[depth-1].name, name)
			}
			if step.comment == "" {
				t.Errorf("%s has no comment", name)
			}
			callers = append(callers[:depth], step)
			for kind := range step.kinds {
				mentioned[kind] = true
			}
			page += fmt.Sprintf("%s- %s\n", strings.Repeat("  ", depth), step)
		}
		for _, kind := range []string{from, to} {
			if !mentioned[kind] {
				t.Errorf("%s: no function of this part has to do with a %s", title, kind)
			}
		}
	}
	if *update {
		if err := os.WriteFile(walkFile, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(strings.Split(read(t, walkFile), "\n"), strings.Split(page, "\n")); diff != "" {
		t.Errorf("docs/%s is not what the code says (-file +code): go test ./docs -run TestWalk -update\n%s", walkFile, diff)
	}
}

// function is a function, a method or a variable of the code.
type function struct {
	name, file, comment string
	object              types.Object
	// uses are the functions, methods and variables that it names, in order, and unsearched those that come after the
	// one that callsNext has found. kinds are all names in it, those of lists as those of what is in them.
	uses, unsearched []types.Object
	kinds            map[string]bool
}

// callsNext reports whether a function calls another one, or the method of an interface that has its name, after the
// one for which it was called before.
func (f *function) callsNext(other *function) bool {
	at := slices.IndexFunc(f.unsearched, func(used types.Object) bool {
		if used == other.object {
			return true
		}
		method, isFunction := used.(*types.Func)
		if !isFunction || method.Signature().Recv() == nil || !types.IsInterface(method.Signature().Recv().Type()) {
			return false
		}
		implementation, isFunction := other.object.(*types.Func)
		return isFunction && implementation.Signature().Recv() != nil && implementation.Name() == method.Name()
	})
	f.unsearched = f.unsearched[at+1:]
	return at >= 0
}

// String is the line of the function on the page.
func (f *function) String() string {
	return fmt.Sprintf("[`%s`](../%s): %s", f.name, f.file, f.comment)
}

// moduleCode is the code of the module, with its types. What is of other modules has none, and what depends on
// that is not known.
type moduleCode struct {
	files     *token.FileSet
	packages  map[string]*types.Package // by path
	functions map[string]*function      // by name
}

const modulePath = "github.com/purelb/purelb-operator"

// walkPackages are those whose functions the walk has.
var walkPackages = []string{
	"webhooks", "controllers", "controllers/allocation", "controllers/announced", "controllers/ipam",
	"controllers/placement",
	"nodeagent", "nodeagent/internal/report", "nodeagent/link", "nodeagent/plan",
}

func readWalkPackages(t *testing.T) *moduleCode {
	t.Helper()
	c := &moduleCode{
		files: token.NewFileSet(), packages: map[string]*types.Package{}, functions: map[string]*function{},
	}
	for _, folder := range walkPackages {
		if _, err := c.Import(modulePath + "/" + folder); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// beginPart begins a part of the walk, in which a function may call what it has called in another one.
func (c *moduleCode) beginPart() {
	for _, f := range c.functions {
		f.unsearched = f.uses
	}
}

// find returns the function of a name: that of its package, of the type of a method, and its own.
func (c *moduleCode) find(t *testing.T, name string) *function {
	t.Helper()
	if c.functions[name] == nil {
		t.Fatalf("there is no %s", name)
	}
	return c.functions[name]
}

// Import returns a package, of which it reads the code if it is of the module.
func (c *moduleCode) Import(importPath string) (*types.Package, error) {
	if known := c.packages[importPath]; known != nil {
		return known, nil
	}
	folder, isOfModule := strings.CutPrefix(importPath, modulePath+"/")
	if !isOfModule {
		c.packages[importPath] = types.NewPackage(importPath, path.Base(importPath))
		c.packages[importPath].MarkComplete()
		return c.packages[importPath], nil
	}
	paths, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, file := range paths {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(c.files, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, parsed)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: c, Error: func(error) {}} // of what is of other modules
	c.packages[importPath], _ = config.Check(importPath, c.files, files, info)
	for _, file := range files {
		for _, declaration := range file.Decls {
			c.add(path.Base(folder), declaration, info)
		}
	}
	return c.packages[importPath], nil
}

// add notes what a declaration uses.
func (c *moduleCode) add(packageName string, declaration ast.Decl, info *types.Info) {
	note := func(name *ast.Ident, typeName string, comment *ast.CommentGroup, node ast.Node) {
		file := strings.TrimPrefix(filepath.ToSlash(c.files.Position(node.Pos()).Filename), root+"/")
		f := &function{name: packageName + "." + typeName + name.Name, file: file, kinds: map[string]bool{}}
		f.object = info.Defs[name]
		f.comment = strings.TrimPrefix(new(doc.Package).Synopsis(comment.Text()), name.Name+" ")
		ast.Inspect(node, func(n ast.Node) bool {
			if id, isIdentifier := n.(*ast.Ident); isIdentifier {
				f.kinds[strings.TrimSuffix(id.Name, "List")] = true
				if used, isFunction := info.Uses[id].(*types.Func); isFunction {
					f.uses = append(f.uses, used.Origin())
				} else if info.Uses[id] != nil {
					f.uses = append(f.uses, info.Uses[id])
				}
			}
			return true
		})
		c.functions[f.name] = f
	}
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		typeName := ""
		if d.Recv != nil {
			typeName = receiverName(d.Recv.List[0].Type) + "."
		}
		note(d.Name, typeName, d.Doc, d)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if values, isValue := spec.(*ast.ValueSpec); isValue && d.Tok == token.VAR {
				note(values.Names[0], "", d.Doc, values)
			}
		}
	}
}

// receiverName is the name of the type of a receiver, which may be a pointer, and generic.
func receiverName(receiver ast.Expr) string {
	switch r := receiver.(type) {
	case *ast.StarExpr:
		return receiverName(r.X)
	case *ast.IndexExpr:
		return receiverName(r.X)
	case *ast.Ident:
		return r.Name
	}
	return ""
}
