package sim

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/cmd/kubectl-purelb/plugin"
	"github.com/purelb/purelb-operator/test/crds"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// show returns what kubectl and the plugin print of a cluster: the tables of all kinds of which there are objects, what
// describe says of some objects, and the status.
func (k *kubernetes) show(described []string) (string, error) {
	var out bytes.Buffer
	if err := k.writeServices(&out); err != nil {
		return "", err
	}
	for _, plural := range []string{"servicegroups", "lbnodeagents", "bgppeers", "noderoutings", "announcements"} {
		if err := k.writeTable(&out, plural); err != nil {
			return "", err
		}
	}
	for _, object := range described {
		if err := k.describe(&out, object); err != nil {
			return "", err
		}
	}
	fmt.Fprintln(&out, "$ kubectl purelb status")
	objects, err := plugin.ReadObjects(context.Background(), k.client(), Namespace, Tenants)
	if err != nil {
		return "", err
	}
	read, err := plugin.NewCluster(context.Background(), objects, Namespace)
	if err != nil {
		return "", err
	}
	if err := plugin.StatusOf(read).WriteText(&out, plugin.Style{}); err != nil {
		return "", err
	}
	text := regexp.MustCompile(`(?m) +$`).ReplaceAllString(out.String(), "")
	return strings.TrimSpace(text) + "\n", nil
}

func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 6, 4, 3, ' ', 0) }

// writeServices writes of Services what the API server's table has of addresses.
func (k *kubernetes) writeServices(out io.Writer) error {
	var services corev1.ServiceList
	if err := k.Admin.List(context.Background(), &services); err != nil {
		return err
	}
	fmt.Fprintf(out, "$ kubectl -n %s get services\n", Tenants)
	w := newTable(out)
	fmt.Fprintln(w, "NAME\tTYPE\tEXTERNAL-IP")
	for i := range services.Items {
		svc, addresses := &services.Items[i], []string(nil)
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			addresses = append(addresses, ingress.IP)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", svc.Name, svc.Spec.Type, cmp.Or(strings.Join(addresses, ","), "<pending>"))
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// writeTable writes the table of the objects of a CRD, by the code of the API server, but for their age.
func (k *kubernetes) writeTable(out io.Writer, plural string) error {
	folder, err := crds.Find()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(folder, "purelb.io_"+plural+".yaml"))
	if err != nil {
		return err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return err
	}
	convertor, err := tableconvertor.New(crd.Spec.Versions[0].AdditionalPrinterColumns)
	if err != nil {
		return err
	}
	objects, err := k.objectsOf(crd.Spec.Names.Kind)
	if err != nil || len(objects.Items) == 0 {
		return err
	}
	table, err := convertor.ConvertToTable(context.Background(), objects, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "$ kubectl -n %s get %s\n", Namespace, plural)
	w := newTable(out)
	isShown := func(c metav1.TableColumnDefinition) bool { return c.Priority == 0 && c.Name != "Age" }
	for _, column := range table.ColumnDefinitions {
		if isShown(column) {
			fmt.Fprint(w, strings.ToUpper(column.Name), "\t")
		}
	}
	fmt.Fprintln(w)
	for _, row := range table.Rows {
		for i, column := range table.ColumnDefinitions {
			if isShown(column) {
				fmt.Fprint(w, textOfCell(row.Cells[i]), "\t")
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// textOfCell returns what kubectl prints of a cell.
func textOfCell(cell any) string {
	if cell == nil {
		return "<none>"
	}
	return cmp.Or(fmt.Sprint(cell), "<none>")
}

// objectsOf returns the objects of a kind of PureLB, as they are in JSON.
func (k *kubernetes) objectsOf(kind string) (*unstructured.UnstructuredList, error) {
	object, err := apiserver.Scheme().New(v1.GroupVersion.WithKind(kind + "List"))
	if err != nil {
		return nil, err
	}
	list, isList := object.(client.ObjectList)
	if !isList {
		return nil, fmt.Errorf("%T is no list", object)
	}
	if err := k.Admin.List(context.Background(), list, client.InNamespace(Namespace)); err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(list)
	if err != nil {
		return nil, err
	}
	objects := &unstructured.UnstructuredList{}
	objects.SetUnstructuredContent(content)
	return objects, nil
}

// describe writes the conditions and the events of an object, kind/namespace/name. Of a Service kubectl describe shows
// no conditions: they are what is left out there.
func (k *kubernetes) describe(out io.Writer, object string) error {
	parts := strings.Split(object, "/")
	kind, in, name := parts[0], parts[1], parts[2]
	fmt.Fprintf(out, "$ kubectl -n %s describe %s %s\n", in, strings.ToLower(kind), name)
	w := newTable(out)
	var conditions []metav1.Condition
	if kind == "Service" {
		svc := &corev1.Service{}
		if err := k.Admin.Get(context.Background(), client.ObjectKey{Namespace: in, Name: name}, svc); err != nil {
			return err
		}
		conditions = svc.Status.Conditions
		fmt.Fprintln(w, "Conditions, by -o yaml:")
	} else {
		objects, err := k.objectsOf(kind)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(objects.Items, func(u unstructured.Unstructured) bool { return u.GetName() == name })
		var status struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects.Items[at].Object, &status); err != nil {
			return err
		}
		conditions = status.Status.Conditions
		fmt.Fprintln(w, "Conditions:")
	}
	for _, c := range conditions {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	fmt.Fprintln(w, "Events:")
	isWritten := map[string]bool{} // Kubernetes only counts events that are repeated
	for _, e := range k.events {
		line := fmt.Sprintf("  %s\t%s\t%s\n", e.Type, e.Reason, e.Note)
		regarding, isObject := e.Regarding.(client.Object)
		if isObject && regarding.GetName() == name && strings.HasSuffix(fmt.Sprintf("%T", e.Regarding), "."+kind) &&
			!isWritten[line] {
			isWritten[line] = true
			fmt.Fprint(w, line)
		}
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// client returns one that finds what the simulated API server has not.
func (k *kubernetes) client() client.Client { return fullClient{k.Admin, k} }

type fullClient struct {
	client.Client
	of *kubernetes
}

func (c fullClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, o ...client.GetOption) error {
	if account, isAccount := obj.(*corev1.ServiceAccount); isAccount {
		account.UID = "account"
		return nil
	}
	return c.Client.Get(ctx, key, obj, o...)
}

func (c fullClient) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	switch l := list.(type) {
	case *appsv1.DeploymentList:
		l.Items = []appsv1.Deployment{*c.of.manager}
	case *corev1.PodList:
		l.Items = c.of.pods
	case *admissionv1.ValidatingWebhookConfigurationList:
		l.Items = []admissionv1.ValidatingWebhookConfiguration{*c.of.webhooks}
	case *metav1.PartialObjectMetadataList: // of Namespaces, as of no other kind
		var namespaces corev1.NamespaceList
		if err := c.Client.List(ctx, &namespaces, o...); err != nil {
			return err
		}
		for i := range namespaces.Items {
			l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: namespaces.Items[i].ObjectMeta})
		}
	default:
		return c.Client.List(ctx, list, o...)
	}
	return nil
}
